"""What comes after a recovery: a server goes on from an image, with load, until it is cut off."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2

from . import alarms, oracle, server, workload
from .limits import Hang, limit
from .mount import recorded
from .primary import Guard
from .recording import Recording

# Of load: some transactions of each client.
SECONDS = 2

# A standby that is to be promoted gets no WAL but what it has.
PROMOTED = {"primary_conninfo": ""}

# The same, and it has not replayed all of that.
PROMOTED_BEHIND = {**PROMOTED, "recovery_min_apply_delay": "1h"}

# A load that goes on for so long after its end waits for something that never comes.
HANG_SECONDS = 180


@dataclass
class Sequel:
    """The second recording of a state, which begins with its image."""

    recording: Recording
    complaints: list
    log: str
    first: int = 0              # operations that were recorded before the load began
    begun: int = 0              # when that was


def live_on(image: Any, directory: Path, context: Any, expected: Any, meta: Any,
            seed: int) -> Sequel:
    """Recover an image on a recorder, ask whether all is there, load it and kill it.

    A standby first replays what it has, and is promoted; one in three, chosen by the seed, is
    promoted before.  `meta` is that of the recording that the image is from.  The image stays as
    it is.
    """
    directory = Path(directory)
    standby = (Path(image) / server.STANDBY_SIGNAL).exists()
    settings = {}
    if standby:
        settings = PROMOTED_BEHIND if seed % 3 == 0 else PROMOTED
    complaints, acks = [], []
    with recorded(context.recorder, image, directory, seed=seed) as mountpoint:
        log = directory / "server.log"
        instance = server.Server(context.bindir, mountpoint, log)
        try:
            instance.start(settings)
            if standby:
                if settings is PROMOTED:
                    instance.wait_for_replay()
                instance.promote(server.REPLAY_SECONDS)
            with limit("the load of a server that goes on from here", HANG_SECONDS):
                complaints += oracle.verify_connected(instance.connect, expected, quick=True,
                                                      checkpoint=seed % 2 == 0)
                acks += workload.run(instance.connect, meta.get("kinds"), seconds=SECONDS,
                                     seed=seed, modes=meta.get("modes", ()))
                guard = Guard({"a server that goes on from here": instance})
                if any(ack.get("unknown") for ack in acks):
                    guard.wait()
                guard.look()
                complaints += guard.crashed.values()
        except (server.ServerError, psycopg2.Error, Hang) as error:
            complaints.append(f"a server cannot go on from here: {error}: "
                              + " / ".join(log.read_text().strip().splitlines()[-4:]))
        finally:
            instance.close()
    (directory / "base").symlink_to(image)
    (directory / "acks.jsonl").write_text("".join(json.dumps(ack) + "\n" for ack in acks))
    recording = Recording(directory)
    text = log.read_text()
    complaints += alarms.of_server(text) + alarms.of_clients(acks)
    complaints += [event["text"] for event in acks if event["what"] == "complaint"]
    sequel = Sequel(recording, complaints, text)
    sequel.begun = next((event["t"] for event in acks if event["what"] == "resumed"), 0)
    sequel.first = sum(op.time <= sequel.begun for op in recording.ops)
    return sequel
