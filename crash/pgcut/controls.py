"""Positive controls: servers that break one rule, and storage that lies.

A campaign that finds nothing proves little unless it would have found what is
wrong.  Each control breaks one promise; the explorer must find it, or the
campaign is void.  Some controls are a server with the mutation of the same name
in tests/mutations; the others let the model of the disk break a promise, as if
the server had not asked for it.
"""

from dataclasses import dataclass, replace

from .disk import Rules


@dataclass(frozen=True)
class Control:
    """One broken promise.

    `record` and `recover` say whether the mutated server is the one that is
    recorded, or the one that recovers; if neither, none is needed, but that of a
    history is always mutated.  `faults` are those that can show it.
    `settings` are needed for it to show.
    """

    name: str
    rule: str
    what: str
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
    sequel: bool = False        # a server goes on from each state, and is cut off again
    standby: bool = False       # each state is judged as a standby, and then promoted
    nested: bool = False        # recovery of most states is cut, too
    monitored: str = ""         # rules of the protocol monitor one of which it must break
    recipe: str = ""            # what histories are drawn from, which have to show it
    rare: bool = False          # only some recordings show it, or take long: must be named

    def plain(self) -> "Control":
        """Return the same broken server, as it is recorded and judged without a scenario."""
        return replace(self, scenario="primary", sequel=False, standby=False, rules=Rules(),
                       faults=("all-kept", "all-lost", "subset", "names", *_TEARS))

    @property
    def mutated(self) -> bool:
        """Say whether a mutation belongs to it."""
        return self.record or self.recover or self.recipe != ""


_SMALL_LOG = (("double_write_buffer_size", "16MB"), ("double_write_stage_size", "2MB"))
# Without WAL for new tables each version of a page is logged.
_SMALL_FULL_LOG = (*_SMALL_LOG, ("wal_level", "minimal"))
# Pages of tables that a transaction makes and fills change without their LSN.
_WITHOUT_WAL = (("wal_level", "minimal"), ("wal_skip_threshold", "0"))
# Each version of a page is logged, and stays in the log for a while.
_MANY_COPIES = (("wal_level", "minimal"), ("double_write_buffer_size", "64MB"),
                ("checkpoint_timeout", "30s"), ("max_wal_size", "64MB"))
# Pages stay in the stage, as no process writes them home before it is full.
_MUCH_STAGED = (("bgwriter_delay", "10s"), ("double_write_stage_size", "8MB"))
# Backends that find the stage full write pages home beside the background writer.
_SMALL_STAGE = (("double_write_stage_size", "1MB"),)
# Clients get in before pages have been redone, by one worker.
_INSTANT = (("instant_recovery", "on"), ("recovery_workers", "1"),
            ("instant_recovery_memory", "64MB"), ("wal_level", "replica"))
# Several processes redo pages before clients get in, in many rounds.
_PARALLEL = (("instant_recovery", "off"), ("recovery_workers", "3"),
             ("instant_recovery_memory", "64kB"), ("wal_level", "replica"))
# WAL has images, and clients get in before the checkpoint.
_IMAGES = (("io_torn_pages_protection", "full_pages"), ("wal_level", "replica"))
# Pages go home atomically in pg_default, and nowhere else.
_ATOMIC = (("io_torn_pages_protection", "atomic_writes"), ("wal_level", "replica"))
# Neither buffers nor stage become full.
_MUCH_ROOM = (("shared_buffers", "16MB"), ("double_write_stage_size", "8MB"))
# Backends that read evict dirty pages, and the stage becomes full.
_FROZEN = (("shared_buffers", "4MB"), ("double_write_stage_size", "1MB"), ("max_connections", "60"))
# The log may grow: with less it would be full.
_GROWING = (("wal_level", "minimal"), ("double_write_buffer_size", "-1"),
            ("checkpoint_timeout", "30s"), ("max_wal_size", "64MB"), ("max_connections", "60"))
# Many pages go home, and few of them twice.
_BUSY = (("scan", 5), ("checkpoint", 2))
# Redo writes pages that a record initialises whatever is there, and their files are synced
# then: this changes pages that are there already.
_IN_PLACE = (("transfer", 4), ("multixact", 2), ("hint", 1))
_TEARS = ("torn-pages", "torn-runs", "torn-page", "storm")

CONTROLS = (
    Control("protection-off", "R2", "io_torn_pages_protection = off",
            settings=(("io_torn_pages_protection", "off"),), faults=_TEARS),
    Control("protection-off-on-ext4", "R2", "io_torn_pages_protection = off, on a block device",
            settings=(("io_torn_pages_protection", "off"),), scenario="ext4", lives=2),
    Control("log-sync-left-out", "R2", "the log is written but never synced",
            record=True, monitored="R2, R3", faults=_TEARS),
    Control("home-before-log-sync", "R2", "pages go home before the sync of the log has returned",
            record=True, monitored="R2", settings=(("wal_level", "minimal"),), faults=_TEARS),
    Control("wal-not-flushed", "R1", "batches are written though WAL is not flushed",
            record=True, monitored="R1", faults=("all-kept", "torn-pages"),
            settings=(("wal_writer_delay", "10s"),),
            workloads=(("copy", 3), ("toast", 2), ("index", 1))),
    Control("recycled-before-data-sync", "R3", "a sync cycle frees the log without syncing the files",
            record=True, monitored="R3", settings=_SMALL_FULL_LOG, faults=_TEARS),
    Control("mark-not-durable", "R3", "segments are reused before the low-water mark is durable",
            record=True, monitored="R3", settings=_SMALL_FULL_LOG, faults=("torn-log", "names"),
            workloads=_BUSY),
    Control("live-segment-reused", "R3", "segments are reused though batches in them are live",
            record=True, monitored="R3", settings=_SMALL_FULL_LOG,
            faults=(*_TEARS, "subset"), workloads=_BUSY),
    Control("log-freed-at-end-of-recovery", "R3",
            "clients let in after a crash with the log already freed, before the checkpoint",
            record=True, monitored="R2, R3", lives=5, seconds=20,
            settings=(("checkpoint_timeout", "30s"), ("checkpoint_completion_target", "0.9")),
            workloads=(("copy", 2), ("toast", 2), ("method", 1)), faults=_TEARS),
    Control("files-not-synced-by-stop", "R5",
            "a standby is stopped without a restartpoint, and does not sync what has gone home",
            record=True, monitored="A4", lives=3, seconds=6, scenario="standby-stopped",
            settings=_ATOMIC, workloads=_IN_PLACE,
            faults=("all-lost", "after-checkpoint", "subset", "storm")),
    Control("stop-cut-short-unnoticed", "R5",
            "a stop of a standby that did not come to its end counts as one",
            record=True, monitored="A4", lives=3, seconds=6, scenario="standby-stopped",
            settings=_ATOMIC, workloads=_IN_PLACE,
            faults=("all-lost", "after-checkpoint", "subset", "storm")),
    Control("primarys-page-put-in-place-early", "redo",
            "a page of the primary is put in place before replay has come to where the primary was",
            record=True, scenario="standby-rotten", standby=True,
            workloads=(("transfer", 4), ("checkpoint", 1)),
            faults=("all-kept", "all-lost", "subset")),
    Control("restore-by-lsn", "R4", "restore picks the copy with the highest LSN, the older of equals",
            recover=True, settings=_WITHOUT_WAL, faults=("all-kept", "torn-pages", "storm"),
            workloads=(("truncate", 3), ("copy", 3), ("recreate", 3), ("scan", 1))),
    Control("older-copy-restored", "R4", "restore picks the oldest copy of a page",
            recover=True, settings=(*_WITHOUT_WAL, *_MANY_COPIES),
            faults=("all-kept", "torn-pages", "storm"),
            workloads=(("truncate", 3), ("copy", 3), ("recreate", 3), ("scan", 1))),
    Control("read-past-the-stage", "R6", "a buffer miss reads home although a newer copy is staged",
            record=True, faults=("all-kept", "all-lost", "subset")),
    Control("epoch-not-ended", "R3", "home writes rely on copies that are being freed",
            record=True, monitored="R3", settings=_SMALL_LOG, faults=_TEARS),
    Control("change-noted-as-hint", "R2", "pages that are changed after hints were set in them get a note",
            record=True, monitored="R2, R3", settings=(("wal_level", "replica"),), faults=_TEARS,
            workloads=_BUSY),
    Control("epoch-without-wal", "R2", "pages that change without WAL are logged once per epoch",
            record=True, settings=_WITHOUT_WAL, faults=("all-kept", "torn-pages", "storm"),
            workloads=(("truncate", 3), ("copy", 3), ("recreate", 3), ("scan", 1))),
    Control("staged-copies-kept", "R7", "drop and truncate leave staged copies of what is gone",
            record=True, faults=("all-kept", "all-lost", "subset"),
            workloads=(("refill", 6), ("scan", 1), ("checkpoint", 1))),
    Control("restore-left-out", "R8", "start-up reads the log and restores nothing",
            recover=True, faults=_TEARS),
    Control("identical-page-left-alone", "R11",
            "neither restore nor redo writes pages that read right after a sync of them has failed",
            record=True, scenario="failing-syncs", lives=3, settings=(("wal_level", "minimal"),),
            faults=("after-checkpoint", "all-lost", "subset")),
    Control("failed-sync-not-noted", "R11",
            "redo takes pages for durable though a sync of them has failed",
            record=True, monitored="A4", scenario="failing-syncs", lives=3, settings=_ATOMIC,
            workloads=_BUSY, faults=("after-checkpoint", "all-lost", "subset"), rare=True),
    Control("wal-tail-not-rewritten", "R1",
            "WAL that may not have been synced is not written again before clients get in",
            record=True, scenario="failing-wal-syncs", lives=3, settings=_IMAGES, workloads=_BUSY,
            faults=("after-checkpoint", "all-lost", "subset"), rare=True),
    Control("newest-batch-left-alone", "R11",
            "restore does not write the batch whose sync may have failed",
            record=True, scenario="failing-log-syncs", lives=6,
            faults=("torn-restore",), workloads=_BUSY),
    # Those of what must get on, or end, take minutes: a limit has to pass.
    Control("home-written-by-flusher", "R11", "pages are written home with the flush lock held",
            record=True, scenario="frozen", lives=1, seconds=12, settings=_FROZEN, faults=("all-kept",),
            rare=True),
    Control("segment-must-be-made", "R11",
            "an error other than a lack of space when a segment is made fails the batch",
            record=True, scenario="quota", lives=1, settings=_GROWING, workloads=_BUSY,
            faults=("all-kept",), rare=True),
    Control("failed-removal-counts-as-done", "R5",
            "a checkpoint completes although files that were to be removed are still there",
            record=True, scenario="failing-unlinks", lives=1, settings=_MUCH_ROOM, workloads=_BUSY,
            faults=("all-kept", "all-lost", "after-checkpoint"), rare=True),
    Control("torn-write-forgotten", "R11", "a page leaves the stage though its home write has failed",
            record=True, monitored="R2, R3", scenario="torn-writes", lives=2),
    Control("exempt-after-restore", "R2", "once pages have been restored, none needs a copy any more",
            recover=True, sequel=True, faults=_TEARS),
    Control("standby-reads-past-the-stage", "R6",
            "sessions of a standby read home although a newer copy is staged",
            recover=True, scenario="standby", standby=True, faults=("all-kept", "subset"),
            settings=_MUCH_STAGED),
    Control("copied-database-made-of-nothing", "-",
            "a standby replays again that a database is copied, and empties it as the source is gone",
            recover=True, scenario="standby", standby=True, faults=("all-kept", "all-lost"), seconds=8,
            workloads=(("database", 3), ("transfer", 1))),
    Control("restored-files-not-synced", "R8",
            "restore empties the log before the files that it has written are synced",
            recover=True, nested=True, faults=_TEARS),
    Control("unreadable-batch-left-out", "R8",
            "restore leaves out batches that it needs and cannot read",
            recover=True, faults=("unreadable-log",)),
    Control("failed-directory-sync-ignored", "R3, R11",
            "segments are reused though the sync of their new names has failed",
            record=True, scenario="failing-directory-syncs", settings=_SMALL_FULL_LOG,
            rules=Rules(names_need_directory_sync=("pg_doublewrite",)),
            faults=("names", "torn-pages", "storm", "all-lost")),
    Control("bad-page-ignored", "R9", "restore writes a damaged copy home",
            recover=True, faults=("rotten-log",)),
    Control("checkpoint-without-drain", "R5", "a checkpoint leaves pages in the stage",
            record=True, settings=_MUCH_STAGED, faults=("after-checkpoint", "all-lost", "subset")),
    Control("cycle-beside-home-writes", "R3",
            "a sync cycle frees copies on which home writes under way rely",
            record=True, monitored="R3", settings=(*_SMALL_FULL_LOG, *_SMALL_STAGE),
            faults=_TEARS, workloads=_BUSY),
    Control("bad-checksum-accepted", "R9", "restore accepts batches with wrong checksums",
            recover=True, faults=("torn-log",)),
    Control("everything-exempt", "exemption", "every page counts as rebuilt by redo",
            record=True, monitored="R2", faults=_TEARS),
    Control("atomic-flag-left-out", "A1",
            "pages that only atomicity protects are written without asking for it",
            record=True, monitored="R2", settings=_ATOMIC, faults=_TEARS),
    Control("atomic-where-not-proved", "A1", "storage that has proved nothing counts as atomic",
            record=True, monitored="R2", settings=_ATOMIC, faults=_TEARS),
    Control("software-taken-for-hardware", "A1", "what a file system makes atomic by copies counts as proved",
            record=True, monitored="R2", settings=_ATOMIC, faults=_TEARS),
    Control("atomic-refusal-taken-for-success", "A2",
            "a page counts as home though its atomic write was not made",
            record=True, scenario="torn-writes", lives=2, settings=_ATOMIC,
            faults=("after-checkpoint", "all-kept", "subset")),
    Control("atomic-page-written-plainly", "A3", "pages that only atomicity protects take the buffered path",
            record=True, monitored="R2", settings=_ATOMIC, faults=_TEARS),
    Control("extension-not-covered", "A3",
            "what the kernel has cached, zeroes of an extension above all, comes over atomic writes",
            settings=_ATOMIC, rules=Rules(cache_over_atomic_writes=True),
            faults=("after-checkpoint", "all-kept", "subset")),
    Control("no-images-in-backup", "R9", "WAL has no images while a backup is taken",
            record=True, scenario="backup", seconds=20, workloads=_BUSY),
    Control("pipeline-skips-a-record", "pipeline", "redo does not get each record",
            recover=True, settings=(("wal_pipeline", "on"),), server=True,
            faults=("all-kept", "all-lost", "torn-pages")),
    Control("instant-first-record-only", "I3", "of the records of a page only the first is applied",
            recover=True, settings=_INSTANT, server=True,
            faults=("all-kept", "all-lost", "torn-pages")),
    Control("instant-round-not-awaited", "I5", "what needs all pages redone is done before they are",
            recover=True, settings=_PARALLEL, server=True,
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


# Holes that a reading of the engine has found and no recording goes to: histories must.
HISTORY_CONTROLS = (
    Control("images-end-unnoticed", "R2, R10",
            "that images end at a start or a promotion is not logged, and redo does not notice",
            recipe="converted-primary"),
    Control("discarded-copy-found", "R6, R7",
            "a buffer miss is served a copy that a truncation has discarded",
            recipe="outlived-truncation"),
    Control("removed-copy-not-kept", "R3",
            "the log does not keep the copy of a removed page that is torn at home",
            recipe="half-dropped", rare=True),
    Control("bucket-read-before-consistency", "R2",
            "redo reads pages that it only locks before it is consistent, and they may be torn",
            recipe="hash-of-a-standby"),
    Control("empty-stale-log-believed", "R9",
            "an empty log counts as ours whatever redo pointers it names",
            recipe="empty-old-log"),
    Control("copies-not-told", "R9",
            "the owner file does not tell a copied cluster from the original",
            recipe="copied-crashed"),
)
