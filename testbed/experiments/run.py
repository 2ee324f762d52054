"""Running an experiment: in its world, on a testbed that stands or on one brought up for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.experiments.rundir import RunDirectory, new_run_path
from testbed.experiments.spec import LoadedExperiment
from testbed.report.find import RUNS
from topologies.errors import UsageError
from topologies.model import Topology

if TYPE_CHECKING:
    from testbed.emulation.rundir import TestbedInfo

Say = Callable[[str], None]


def run_experiment(
    experiment: LoadedExperiment,
    *,
    out: Path = Path(RUNS),
    testbed: str | None = None,
    keep: bool = False,
    allow_degraded: bool = False,
    say: Say = lambda text: None,
    on_directory: Callable[[Path], None] = lambda path: None,
) -> Path:
    """Run an experiment and return its run directory.

    Args:
        experiment: what to run; its `world` says where.
        out: the folder that receives the run directory.
        testbed: the testbed to use, or the name of the one to bring up. Without it, a testbed that stands
            with the experiment's very network is used, and otherwise one is brought up.
        keep: leave a testbed standing that was brought up for this run.
        allow_degraded: bring up even what cannot be as fast as declared; the run's notes tell it.
        say: told what is being done.
        on_directory: told the run directory as soon as there is one, also of a run that then fails.

    Raises:
        RunFailedError: something failed on the way; the run directory tells as well.
        UsageError: the named testbed stands with another network.
        CannotHonourError: this machine cannot run it, or something of the standing testbed has ended.
        KeyboardInterrupt: passed on when everything that was started has ended.
    """
    if experiment.spec.tuners:
        # Before anything is written or brought up: both worlds train the trials.
        from agents.data import require_data

        require_data(experiment.data)
    path = new_run_path(out, experiment.spec.name)
    if experiment.spec.world == "simulated" and experiment.spec.tuners:
        from testbed.searches.simulated import run_searches

        run_searches(experiment, path, say, on_directory=on_directory)
        return path
    if experiment.spec.world == "simulated":
        from testbed.simulation.run import run_experiment as simulate

        simulate(experiment, path, say, on_directory=on_directory)
        return path
    # Imported only here: the simulated world needs none of what these need.
    from testbed.experiments.emulated import EmulatedRun
    from testbed.standing import require_root

    require_root("an emulated run")
    with (
        testbed_for(experiment, testbed, keep, allow_degraded, say) as info,
        RunDirectory(path, experiment, "emulated") as run,
    ):
        on_directory(run.path)
        described = {"name": info.name, "created_s": info.created_s, "subnet": info.subnet, "cpu_by": info.cpu_by}
        run.update(testbed=described)
        if experiment.spec.tuners:
            from testbed.searches.emulated import EmulatedSearch

            EmulatedSearch(experiment, info, run, say).execute()
        else:
            EmulatedRun(experiment, info, run, say).execute()
    return path


@contextmanager
def testbed_for(
    experiment: LoadedExperiment, name: str | None, keep: bool, allow_degraded: bool, say: Say
) -> Iterator[TestbedInfo]:
    """The testbed for an experiment; one that had to be brought up is taken down again, unless kept."""
    from testbed.emulation import launch
    from testbed.experiments.readiness import require_free, require_healthy, require_still
    from testbed.standing import standing

    found = {info.name: info for info in standing()}
    if name is None:
        same = [
            info
            for info in found.values()
            if same_network(info.load_topology(), experiment.topology)
            and info.coordinator_site == experiment.spec.coordinator_site
        ]
        if len(same) > 1:
            names = ", ".join(info.name for info in same)
            raise UsageError(
                f"several testbeds stand with this network: {names}", hint="choose one with --name"
            )
        name = same[0].name if same else free_name(experiment.spec.name, found)
    if name in found:
        info = found[name]
        _check_network(info, experiment)
        require_healthy(name)
        require_free(info, "wait for it to end, or bring another testbed up with --name")
        if experiment.changes:
            require_still(name)
        say(f"using testbed {name}")
        yield info
        return
    say(f"bringing up testbed {name}: {experiment.spec.topology}")
    info = launch.up(
        experiment.topology,
        name,
        on_progress=say,
        allow_degraded=allow_degraded,
        coordinator=experiment.spec.coordinator_site,
    )
    try:
        yield info
    finally:
        if keep:
            say(f"testbed {name} is left standing; `testbed down {name}` takes it away")
        else:
            say(f"taking down testbed {name}")
            try:
                launch.down(name)
            except UsageError as error:
                # Somebody else took it away. If that broke the run, the run's own error tells it, and has to stay.
                say(f"nothing to take down: {error.message}")


def free_name(experiment: str, taken: Collection[str]) -> str:
    """A name for a testbed, from the experiment's, that no standing testbed has."""
    plain = "".join(letter if letter.isalnum() else "-" for letter in experiment.lower())
    plain = plain.strip("-")[:28] or "run"
    return next(name for k in range(len(taken) + 1) if (name := f"{plain}-{k}" if k else plain) not in taken)


def same_network(one: Topology, other: Topology) -> bool:
    """Whether two topologies have the same sites, workers and links, at the same rates."""
    mine, theirs = one.to_dict(), other.to_dict()
    # The name says nothing about the network.
    return mine | {"name": ""} == theirs | {"name": ""}


def _check_network(info: TestbedInfo, experiment: LoadedExperiment) -> None:
    stands, wanted = info.load_topology(), experiment.topology
    if same_network(stands, wanted):
        at = experiment.spec.coordinator_site
        if info.coordinator_site != at:
            raise UsageError(
                f"the coordinator of testbed {info.name} is {_place(info.coordinator_site)}, "
                f"the experiment wants it {_place(at)}",
                hint=f"`testbed down {info.name}`, or leave --name out to bring another one up",
            )
        return
    scale = f" with rates x {experiment.spec.scale:g}" if experiment.spec.scale != 1 else ""
    raise UsageError(
        f"testbed {info.name} stands with another network than {experiment.spec.topology}{scale}: "
        f"{first_difference(stands, wanted)}",
        hint=f"`testbed down {info.name}`, or leave --name out to bring another one up",
    )


def _place(site: str | None) -> str:
    return "out of band" if site is None else f"at {site}"


def first_difference(stands: Topology, wanted: Topology) -> str:
    """In which way two networks differ, in a few words."""
    if stands.site_names != wanted.site_names:
        return f"its sites are {', '.join(stands.site_names[:9])}"
    for name, site in stands.sites.items():
        if site.workers != wanted.sites[name].workers:
            return f"{name} has {site.workers} workers there and {wanted.sites[name].workers} here"
        if site.cpu != wanted.sites[name].cpu:
            return f"the cpu of {name} is {site.cpu} there and {wanted.sites[name].cpu} here"
    there = {(link.src_name, link.dst_name): link for link in stands.directed}
    for link in wanted.directed:
        other = there.get((link.src_name, link.dst_name))
        if other is None:
            return f"it has no link {link.src_name} - {link.dst_name}"
        for key in ("rate", "delay", "jitter", "loss", "queue"):
            mine, theirs = getattr(link, key), getattr(other, key)
            if mine != theirs:
                return f"the {key} of {link.src_name} > {link.dst_name} is {theirs} there and {mine} here"
    return "it has more links"
