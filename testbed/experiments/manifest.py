"""What one run directory holds: names of its files, and `manifest.json` as values.

Both worlds write the same directory and the reports read nothing else, so a copied directory is enough:

    manifest.json          who, what, when, on what machine, over which links, how it ended
    experiment.yaml        the experiment file, unchanged
    config.resolved.yaml   the same with every default written out
    topology.json          the topology, scaled as it ran
    events.jsonl           what the runner did, one JSON object a line
    links.csv              each directed link, each second: configured and achieved
    changes.csv            each change of a link that dynamics or timeline made, when it was made
    decisions.jsonl        each transfer that a scheduler decided by itself, and why (`agents.sync.decisions`)
    workers/SITE-I/        trace.jsonl (one line an iteration), stdout, stderr
    logs/                  what the testbed's own processes wrote

Runs of searches have three more (`testbed.searches.records`), and a trace for every trial at every site:

    stages.csv, trials.csv, coflows.csv
    workers/SITE-0/TUNER-TRIAL/trace.jsonl
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from testbed.experiments.runner import Runner
from topologies.errors import InvalidFileError
from topologies.validation import validated

SCHEMA = 1

MANIFEST = "manifest.json"
EXPERIMENT = "experiment.yaml"
RESOLVED = "config.resolved.yaml"
TOPOLOGY = "topology.json"
EVENTS = "events.jsonl"
LINKS = "links.csv"
CHANGES = "changes.csv"
DECISIONS = "decisions.jsonl"
WORKERS = "workers"
TRACE = "trace.jsonl"
LOGS = "logs"

LINK_COLUMNS = (
    "t_s",
    "interval_s",
    "segment",
    "src",
    "dst",
    "configured_bps",
    "achieved_bps",
    "carried_bytes",
    "dropped_packets",
)

CHANGE_COLUMNS = (
    *("t_s", "segment", "src", "dst", "rate_bps", "delay_s", "loss_ratio", "state"),
    "loss_burst",
)

RunStatus = Literal["running", "completed", "failed", "interrupted", "abandoned"]
SegmentStatus = Literal["waiting", "running", "completed", "failed"]


class _Row(BaseModel):
    # Read with tolerance: a directory written by a later version of the same schema may know more.
    model_config = ConfigDict(frozen=True, extra="ignore")


class LinkRow(_Row):
    """A directed link as it was configured when the run began; `loss_burst` is None where losses are
    independent.
    """

    index: int
    src: str
    dst: str
    rate_bps: int
    delay_s: float
    jitter_s: float
    loss_ratio: float
    loss_burst: float | None = None
    queue_bytes: int | None = None
    state: Literal["up", "down", "blackhole"] = "up"


class WorkerRow(_Row):
    """A worker: its site, its index within the site and its rank among all."""

    site: str
    worker: int
    rank: int

    @property
    def directory(self) -> str:
        return worker_directory(self.site, self.worker)


class SegmentRow(_Row):
    """One scheduler's turn: `iterations` of training, the first `warmup` of them outside the statistics.

    `elements` is what every worker hands over each iteration. Times are nanoseconds of the run's one
    monotonic clock. `plan` is the scheduler's plan in the form that `testbed plan --format json` prints; None
    where the scheduler decides per transfer. With `overlap` gradients are handed over before the last is ready;
    with `ahead` a site sends what it has before all are ready, because no barrier holds it.
    """

    label: str
    scheduler: str
    elements: int
    repeat: int
    iterations: int
    warmup: int
    status: SegmentStatus = "waiting"
    started_ns: int | None = None
    finished_ns: int | None = None
    plan: dict[str, Any] | None = None
    overlap: bool = False
    ahead: bool = False


class FailureRow(_Row):
    """Why a run did not complete."""

    message: str
    hint: str = ""
    exit_code: int


class FidelityRow(_Row):
    """Whether the network behaved as declared, and what says so.

    `limits` are what the machine did not grant, such as real-time scheduling: the verdict judges effects, so
    they need not lower it. `calibration` is the finding at bring-up, `run` what was watched during the run.
    """

    verdict: Literal["faithful", "degraded", "saturated", "exact", "unknown"]
    reasons: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    calibration: dict[str, Any] | None = None
    run: dict[str, Any] | None = None


class Manifest(_Row):
    """A run's manifest. Times `*_s` are seconds since 1970, UTC.

    `notes` qualify the numbers; reports show them. `changed_by_hand` counts how often somebody else changed
    links while the run went on; `changes.csv` has what they became. `runner` is the process that writes it.
    Once that has ended without a word the run is `abandoned`: never written, only read so.
    """

    schema_version: int = SCHEMA
    id: str
    name: str
    world: Literal["emulated", "simulated"]
    status: RunStatus = "running"
    failure: FailureRow | None = None
    runner: Runner | None = None
    started_s: float
    finished_s: float | None = None
    notes: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    git: dict[str, Any] | None = None
    machine: dict[str, Any] = {}
    testbed: dict[str, Any] | None = None
    topology: str
    scale: float
    seeds: dict[str, int] = {}
    experiment: dict[str, Any] = {}
    links: tuple[LinkRow, ...] = ()
    changed_by_hand: int = 0
    workers: tuple[WorkerRow, ...] = ()
    segments: tuple[SegmentRow, ...] = ()
    fidelity: FidelityRow = FidelityRow(verdict="unknown", reasons=("it is judged when the run ends",))

    @property
    def links_changed(self) -> bool:
        """Whether links may have changed while the run went on, by themselves or by others."""
        moving = self.experiment.get("dynamics", "none") != "none" or bool(self.experiment.get("timeline"))
        return moving or self.changed_by_hand > 0

    def write(self, directory: Path) -> None:
        """Write `manifest.json` in one step: a reader sees the old or the new one, never half of it."""
        fields = self.model_dump(mode="json")
        text = json.dumps({"schema": fields.pop("schema_version"), **fields}, indent=2)
        partial = directory / f"{MANIFEST}.partial"
        try:
            partial.write_text(text + "\n", encoding="utf-8")
            partial.replace(directory / MANIFEST)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def read_manifest(directory: Path) -> Manifest:
    """Read a run directory's manifest.

    A run that nobody is left to finish is read as abandoned.

    Raises:
        InvalidFileError: it is missing, damaged, or of a later schema than this version knows.
    """
    manifest = _read(directory)
    if manifest.status != "running" or manifest.runner is None or not manifest.runner.is_gone():
        return manifest
    # It may have finished, and ended, between the reading and the look at its process.
    manifest = _read(directory)
    return manifest.model_copy(update={"status": "abandoned"}) if manifest.status == "running" else manifest


def _read(directory: Path) -> Manifest:
    path = directory / MANIFEST
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidFileError(
            f"{directory}: no readable {MANIFEST}: {error.strerror}", hint="is this a run directory?"
        ) from error
    except ValueError as error:
        raise InvalidFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("schema"), int):
        raise InvalidFileError(f"{path}: no integer 'schema' at the top")
    schema = fields.pop("schema")
    if schema > SCHEMA:
        raise InvalidFileError(
            f"{path}: schema {schema}, this version reads up to {SCHEMA}", hint="use a newer stormbed"
        )
    return validated(
        Manifest,
        {"schema_version": schema, **fields},
        str(path),
        error=InvalidFileError,
        hint="it was changed by hand, or its disk was full: the run cannot be read any more",
    )


def worker_directory(site: str, worker: int) -> str:
    """The worker's directory within the run directory, as `workers/dc3-0`."""
    return f"{WORKERS}/{site}-{worker}"
