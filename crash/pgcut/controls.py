"""Positive controls: servers that break one rule, and storage that lies.

A campaign that finds nothing proves little unless it would have found what is
wrong.  Each control breaks one promise; the explorer must find it, or the
campaign is void.  Some controls are edits of the engine, compiled into one
server that breaks the rule which PGCUT_BREAK names; the others let the model
of the disk break a promise, as if the server had not asked for it.

An edit whose old text is no longer in the source, or no longer unique, is an
error: a control must not be lost unnoticed.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .disk import Rules

ENGINE = "src/backend/storage/doublewrite"
SCAN = "src/common/doublewrite_scan.c"
PIPELINE = "src/backend/access/transam/xlogpipeline.c"
XLOG = "src/backend/access/transam/xlog.c"
VARIABLE = "PGCUT_BREAK"

_SWITCH = f"""
static inline bool
pgcut_break(const char *name)
{{
	const char *broken = getenv("{VARIABLE}");

	return broken != NULL && strcmp(broken, name) == 0;
}}
"""
_INCLUDE = re.compile(r'#include "(?:storage/doublewrite(?:_internal)?|common/doublewrite_scan|'
                      r'access/xlogpipeline)\.h"\n')


class ControlError(Exception):
    """A control cannot be built."""


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which must occur once in `file`, by `new`.

    A file is named as in the engine's directory, or by its path.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Control:
    """One broken promise.

    `record` and `recover` say whether the broken server is the one that is
    recorded, or the one that recovers.  `faults` are those that can show it.
    `settings` are needed for it to show.
    """

    name: str
    rule: str
    what: str
    edits: tuple = ()
    record: bool = False
    recover: bool = False
    rules: Rules = Rules()
    settings: tuple = ()
    faults: tuple = ()
    workloads: tuple = ()       # kinds of load with numbers of clients; () is all
    scenario: str = "primary"   # what is recorded; of a backup, the copies are the states
    lives: int = 1              # of the recorded server
    seconds: float = 4          # of load in a recording
    server: bool = False        # recover with all processes, not in single-user mode
    monitored: bool = False     # the protocol monitor must see it in the recording


_SMALL_LOG = (("double_write_buffer_size", "16MB"), ("double_write_stage_size", "2MB"))
# Without WAL for new tables each version of a page is logged.
_SMALL_FULL_LOG = (*_SMALL_LOG, ("wal_level", "minimal"))
# Pages of tables that a transaction makes and fills change without their LSN.
_WITHOUT_WAL = (("wal_level", "minimal"), ("wal_skip_threshold", "0"))
# Each version of a page is logged, and stays in the log for a while.
_MANY_COPIES = (("wal_level", "minimal"), ("double_write_buffer_size", "64MB"),
                ("checkpoint_timeout", "30s"), ("max_wal_size", "64MB"))
# Many pages go home, and few of them twice.
_BUSY = (("scan", 5), ("checkpoint", 2))
_TEARS = ("torn-pages", "torn-runs", "torn-page", "storm")

CONTROLS = (
    Control("protection-off", "R2", "io_torn_pages_protection = off",
            settings=(("io_torn_pages_protection", "off"),), faults=_TEARS),
    Control("log-sync-left-out", "R2", "the log is written but never synced",
            edits=(Edit("segment.c", "	if (!enableFsync)\n		return;\n\n	INSTR_TIME",
                        "	if (!enableFsync || pgcut_break(\"log-sync-left-out\"))\n		return;\n\n	INSTR_TIME"),),
            record=True, monitored=True, faults=_TEARS),
    Control("home-before-log-sync", "R2", "pages go home before the sync of the log has returned",
            edits=(Edit("log.c", '	INJECTION_POINT("doublewrite-log-written", NULL);\n	dw_sync_log();\n',
                        '	INJECTION_POINT("doublewrite-log-written", NULL);\n'
                        '	if (nslots == 0 || !pgcut_break("home-before-log-sync"))\n		dw_sync_log();\n'),
                   Edit("log.c", "	if (AmRegularBackendProcess())\n		dw_close_segment();\n",
                        '	if (AmRegularBackendProcess() && !pgcut_break("home-before-log-sync"))\n		dw_close_segment();\n'),
                   Edit("flush.c", "			dw_write_home(mine);\n			LWLockRelease(DoubleWriteFlushLock);\n",
                        "			dw_write_home(mine);\n"
                        '			if (pgcut_break("home-before-log-sync") && DWCtl->log.open)\n'
                        "				dw_sync_log();\n"
                        "			LWLockRelease(DoubleWriteFlushLock);\n")),
            record=True, monitored=True, settings=(("wal_level", "minimal"),), faults=_TEARS),
    Control("wal-not-flushed", "R1", "batches are written though WAL is not flushed",
            edits=(Edit("batch.c", "	if (!XLogRecPtrIsInvalid(lsn))\n		XLogFlush(lsn);\n",
                        '	if (!XLogRecPtrIsInvalid(lsn) && !pgcut_break("wal-not-flushed"))\n		XLogFlush(lsn);\n'),),
            record=True, monitored=True, faults=("all-kept", "torn-pages"),
            settings=(("wal_writer_delay", "10s"),),
            workloads=(("copy", 3), ("toast", 2), ("index", 1))),
    Control("recycled-before-data-sync", "R3", "a sync cycle frees the log without syncing the files",
            edits=(Edit("dirty.c", "	if (!enableFsync)\n		return;\n\n	memset(&ftag",
                        '	if (!enableFsync || pgcut_break("recycled-before-data-sync"))\n		return;\n\n	memset(&ftag'),),
            record=True, monitored=True, settings=_SMALL_FULL_LOG, faults=_TEARS),
    Control("mark-not-durable", "R3", "segments are reused before the low-water mark is durable",
            edits=(Edit("log.c", '	if (!dw_reserve(1, true, true))\n		elog(ERROR, "double-write log has too many segments");\n	dw_build_entries(NULL, 0);\n	dw_append(NULL, 0, NULL);\n',
                        '	if (pgcut_break("mark-not-durable"))\n		DWCtl->log.low_water_logged = DWCtl->log.low_water;\n'
                        '	else\n	{\n		if (!dw_reserve(1, true, true))\n			elog(ERROR, "double-write log has too many segments");\n		dw_build_entries(NULL, 0);\n		dw_append(NULL, 0, NULL);\n	}\n'),),
            record=True, monitored=True, settings=_SMALL_FULL_LOG, faults=("torn-log", "names"),
            workloads=_BUSY),
    Control("live-segment-reused", "R3", "segments are reused though batches in them are live",
            edits=(Edit("segment.c", "	while (DWCtl->log.first_segno < DWCtl->log.segno &&\n		   DWCtl->log.seg_first_batch",
                        "	while (DWCtl->log.first_segno < DWCtl->log.segno &&\n"
                        '		   (pgcut_break("live-segment-reused") ||\n			DWCtl->log.seg_first_batch'),
                   Edit("segment.c", "		   <= DWCtl->log.low_water_logged)\n	{", "		   <= DWCtl->log.low_water_logged))\n	{")),
            record=True, monitored=True, settings=_SMALL_FULL_LOG, faults=_TEARS + ("subset",), workloads=_BUSY),
    Control("log-freed-before-checkpoint", "R3",
            "clients let in after a crash with the log already freed, before the checkpoint",
            edits=(Edit("mode.c", "void\nDoubleWriteRecoveryEnded(void)\n{\n",
                        "void\nDoubleWriteRecoveryEnded(void)\n{\n"
                        '	if (DWCtl->log.armed && pgcut_break("log-freed-before-checkpoint"))\n'
                        "	{\n		dw_lock_flush(LW_EXCLUSIVE);\n"
                        "		dw_epoch_begin(DWCtl->log.next_batchno);\n"
                        "		dw_log_set_low_water(DWCtl->log.next_batchno);\n"
                        "		LWLockRelease(DoubleWriteFlushLock);\n	}\n"),),
            record=True, monitored=True, lives=5, seconds=20,
            settings=(("checkpoint_timeout", "30s"), ("checkpoint_completion_target", "0.9")),
            workloads=(("copy", 2), ("toast", 2), ("method", 1)), faults=_TEARS),
    Control("restore-by-lsn", "R4", "restore picks the copy with the highest LSN, the older of equals",
            edits=(Edit(SCAN, "	return ca->order < cb->order ? -1 : ca->order > cb->order;\n",
                        '	if (pgcut_break("restore-by-lsn"))\n'
                        "	{\n		if (ca->entry.lsn != cb->entry.lsn)\n			return ca->entry.lsn < cb->entry.lsn ? -1 : 1;\n"
                        "		return ca->order > cb->order ? -1 : ca->order < cb->order;\n	}\n"
                        '	if (pgcut_break("older-copy-restored"))\n'
                        "		return ca->order > cb->order ? -1 : ca->order < cb->order;\n"
                        "	return ca->order < cb->order ? -1 : ca->order > cb->order;\n"),),
            recover=True, settings=_WITHOUT_WAL, faults=("all-kept", "torn-pages", "storm"),
            workloads=(("truncate", 3), ("copy", 3), ("recreate", 3), ("scan", 1))),
    Control("older-copy-restored", "R4", "restore picks the oldest copy of a page",
            recover=True, settings=(*_WITHOUT_WAL, *_MANY_COPIES),
            faults=("all-kept", "torn-pages", "storm"),
            workloads=(("truncate", 3), ("copy", 3), ("recreate", 3), ("scan", 1))),
    Control("read-past-the-stage", "R6", "a buffer miss reads home although a newer copy is staged",
            edits=(Edit("stage.c", "	if (!possible)\n	{\n		pg_read_barrier();",
                        '	if (!possible || pgcut_break("read-past-the-stage"))\n	{\n		pg_read_barrier();'),),
            record=True, faults=("all-kept", "all-lost", "subset")),
    Control("epoch-not-ended", "R3", "home writes rely on copies that are being freed",
            edits=(Edit("epoch.c", "	DWCtl->log.epoch = Max(DWCtl->log.epoch, first_batch);\n",
                        '	if (!pgcut_break("epoch-not-ended"))\n'
                        "		DWCtl->log.epoch = Max(DWCtl->log.epoch, first_batch);\n"),
                   Edit("log.c", "	Assert(mark <= DWCtl->log.epoch);\n",
                        '	Assert(mark <= DWCtl->log.epoch || pgcut_break("epoch-not-ended"));\n')),
            record=True, monitored=True, settings=_SMALL_LOG, faults=_TEARS),
    Control("epoch-without-wal", "R2", "pages that change without WAL are logged once per epoch",
            edits=(Edit("epoch.c", "	if (!XLogIsNeeded())\n",
                        '	if (!XLogIsNeeded() && !pgcut_break("epoch-without-wal"))\n'),),
            record=True, settings=_WITHOUT_WAL, faults=("all-kept", "torn-pages", "storm"),
            workloads=(("truncate", 3), ("copy", 3), ("recreate", 3), ("scan", 1))),
    Control("staged-copies-kept", "R7", "drop and truncate leave staged copies of what is gone",
            edits=(Edit("stage.c", "	if (pg_atomic_read_u32(&DWCtl->stage.ninuse_hint) == 0)\n		return false;\n",
                        "	if (pg_atomic_read_u32(&DWCtl->stage.ninuse_hint) == 0 ||\n"
                        '		pgcut_break("staged-copies-kept"))\n		return false;\n'),),
            record=True, faults=("all-kept", "all-lost", "subset"),
            workloads=(("refill", 6), ("scan", 1), ("checkpoint", 1))),
    Control("restore-left-out", "R8", "start-up reads the log and restores nothing",
            edits=(Edit("startup.c", "			dw_restore(&scan, &live);\n",
                        '			if (!pgcut_break("restore-left-out"))\n				dw_restore(&scan, &live);\n'),),
            recover=True, faults=_TEARS),
    Control("identical-page-left-alone", "R11",
            "restore does not write pages that read right after a sync of them has failed",
            edits=(Edit("restore.c", '	INJECTION_POINT("doublewrite-restore-run", NULL);\n',
                        '	if (pgcut_break("identical-page-left-alone") &&\n'
                        "		memcmp(home[0], logged[0], BLCKSZ) == 0)\n		return;\n"
                        '	INJECTION_POINT("doublewrite-restore-run", NULL);\n'),
                   Edit("restore.c", "	while (len < limit && copies[len].entry.blkno == first->blkno + len)\n",
                        "	while (len < limit && copies[len].entry.blkno == first->blkno + len &&\n"
                        '		   !pgcut_break("identical-page-left-alone"))\n')),
            record=True, scenario="failing-syncs", lives=3, settings=(("wal_level", "minimal"),),
            faults=("after-checkpoint", "all-lost", "subset")),
    Control("newest-batch-left-alone", "R11",
            "restore does not write the batch whose sync may have failed",
            edits=(Edit("restore.c", "	dw_rewrite_batch(&scan->batches[live->last]);\n",
                        '	if (!pgcut_break("newest-batch-left-alone"))\n'
                        "		dw_rewrite_batch(&scan->batches[live->last]);\n"),),
            record=True, scenario="failing-log-syncs", lives=6,
            faults=("torn-restore",), workloads=_BUSY),
    Control("bad-checksum-accepted", "R9", "restore accepts batches with wrong checksums",
            edits=(Edit(SCAN, "	if (n > 0 && scan->batches[n - 1].bad_page >= 0)\n	{\n",
                        '	if (n > 0 && scan->batches[n - 1].bad_page >= 0 && !pgcut_break("bad-checksum-accepted"))\n	{\n'),
                   Edit(SCAN, "		if (batch->bad_page >= 0)\n",
                        '		if (batch->bad_page >= 0 && !pgcut_break("bad-checksum-accepted"))\n'),
                   Edit("restore.c", "		DWPageChecksum(stored, length) != copy->entry.crc)",
                        '		(DWPageChecksum(stored, length) != copy->entry.crc && !pgcut_break("bad-checksum-accepted")))')),
            recover=True, faults=("torn-log",)),
    Control("everything-exempt", "exemption", "every page counts as rebuilt by redo",
            edits=(Edit("exempt.c", "	if (BufTagGetForkNum(&slot->tag) != MAIN_FORKNUM)\n		return false;\n",
                        '	if (pgcut_break("everything-exempt"))\n		return true;\n'
                        "	if (BufTagGetForkNum(&slot->tag) != MAIN_FORKNUM)\n		return false;\n"),),
            record=True, monitored=True, faults=_TEARS),
    Control("no-images-in-backup", "R9", "WAL has no images while a backup is taken",
            edits=(Edit(XLOG, "		doPageWrites = (Insert->fullPageWrites || Insert->runningBackups > 0 ||\n",
                        "		doPageWrites = (Insert->fullPageWrites ||\n"
                        "						(Insert->runningBackups > 0 &&\n"
                        '						 !pgcut_break("no-images-in-backup")) ||\n'),),
            record=True, scenario="backup", seconds=20, workloads=_BUSY),
    Control("pipeline-skips-a-record", "pipeline", "redo does not get each record",
            edits=(Edit(PIPELINE, "		pipeline_wake(&XLogPipelineCtl->worker);\n\n	return next;\n",
                        "		pipeline_wake(&XLogPipelineCtl->worker);\n\n"
                        "	if (next->header.xl_rmid == RM_HEAP_ID && total_records % 20 == 0 &&\n"
                        '		pgcut_break("pipeline-skips-a-record"))\n'
                        "		return XLogPipelineNextRecord();\n	return next;\n"),),
            recover=True, settings=(("wal_pipeline", "on"),), server=True,
            faults=("all-kept", "all-lost", "torn-pages")),
    Control("log-directory-not-synced", "R3", "new files of the log are not synced into their directory",
            rules=Rules(names_need_directory_sync=("pg_doublewrite",),
                        ignore_directory_syncs_below=("pg_doublewrite",)),
            faults=("names", "torn-pages", "storm", "all-lost")),
    Control("wal-sync-ignored", "disk", "syncs of WAL are not honoured",
            rules=Rules(ignore_syncs_below=("pg_wal",)), faults=("all-lost", "subset", "torn-wal")),
    Control("data-sync-ignored", "disk", "syncs of relation files are not honoured",
            rules=Rules(ignore_syncs_below=("base",)), settings=_SMALL_FULL_LOG,
            faults=("all-lost", "subset")),
)


# The server that breaks rules ----------------------------------------------


def build_server(build, source, prefix, target):
    """Compile the engine with all edits, link it, and install it to `target`.

    `build` is a meson build of the patched tree `source`, installed in
    `prefix`; neither is changed.  Returns the directory of the programs.
    """
    build, source, target = Path(build), Path(source), Path(target)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(prefix, target / "install", symlinks=True)
    texts = _edited(source)
    (target / "engine").mkdir()
    objects = {}
    for path, text in texts.items():
        command = _compile_command(build, path)
        copy = target / "engine" / Path(path).name
        copy.write_text(text)
        objects[command["output"]] = f"{copy}.o"
        _run(_recompile(command, copy, f"{copy}.o"), build)
    _link(build, objects, target / "install" / "bin" / "postgres")
    return target / "install" / "bin"


def _edited(source):
    """Return {path: text} of the files that controls edit."""
    texts = {}
    for edit in (edit for control in CONTROLS for edit in control.edits):
        path = edit.file if "/" in edit.file else f"{ENGINE}/{edit.file}"
        text = texts.get(path) or (source / path).read_text()
        if text.count(edit.old) != 1:
            raise ControlError(f"the text to edit in {path} is not there once:\n{edit.old}")
        texts[path] = text.replace(edit.old, edit.new)
    return {path: _INCLUDE.sub(lambda match: match[0] + _SWITCH, text, count=1)
            for path, text in texts.items()}


def _compile_command(build, path):
    """Return meson's compile command of a server source."""
    for command in json.loads((build / "compile_commands.json").read_text()):
        if command["file"].endswith("/" + path) and \
                ("postgres_lib" in command["output"] or "pgcommon_srv" in command["output"]):
            return command
    raise ControlError(f"there is no compile command for {path} in {build}")


def _recompile(command, source, output):
    """Return a compile command for another source and object file."""
    text = command["command"]
    words = text.replace(command["file"], str(source)).replace(command["output"], output)
    return re.sub(r"^ccache ", "", words)


def _link(build, objects, output):
    """Link postgres with some objects replaced, as ninja would.

    An object that replaces a member of a library comes before the library.
    """
    query = _capture(["ninja", "-C", str(build), "-t", "query", "src/backend/postgres"])
    inputs = re.findall(r"^    (?!\|)(\S+)$", query.partition("input:")[2].partition("outputs:")[0],
                        re.MULTILINE)
    rule = re.search(r"^build src/backend/postgres: .*?\n((?: .*\n)+)",
                     (build / "build.ninja").read_text(), re.MULTILINE)
    arguments = re.search(r"LINK_ARGS = (.*)", rule[1])[1]
    members = [copy for name, copy in objects.items() if name not in inputs]
    names = members + [objects.get(name, name) for name in inputs if name.endswith((".o", ".a"))]
    response = output.parent / "link.rsp"
    response.write_text(" ".join(["-o", str(output), *names, arguments]))
    output.unlink()
    try:
        _run(f"cc @{response}", build)
    finally:
        response.unlink()


def _run(command, directory):
    done = subprocess.run(command, shell=True, cwd=directory, capture_output=True, text=True,
                          env={**os.environ, "CCACHE_DISABLE": "1"})
    if done.returncode:
        raise ControlError(f"failed: {command}\n{done.stderr[-3000:]}")


def _capture(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
