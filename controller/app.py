"""The OpenFlow application: reports what switches say to the fabric and sends them the commands it answers.

The only file that imports the OpenFlow engine. The engine is os-ken, the maintained continuation of Ryu
with the same interface; with STORMBED_OPENFLOW_ENGINE=ryu the same application runs under Ryu itself.
OpenFlow 1.3 only.
"""

from __future__ import annotations

import logging
import os
import time
from functools import cache
from typing import Any

from controller.fabric import Fabric
from controller.rules import COOKIE_MASK, FlowRule, Match
from controller.session import Add, Barrier, Command, Delete, Installed, ReadPorts, ReadRules
from controller.steering import Orders, Reroute

ENGINE = os.environ.get("STORMBED_OPENFLOW_ENGINE", "os-ken")
if ENGINE == "ryu":
    import eventlet.wsgi  # type: ignore[import-untyped]

    # Ryu 4.34 imports this name, which later releases of eventlet no longer have.
    if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
        eventlet.wsgi.ALREADY_HANDLED = object()
    from ryu import cfg
    from ryu.base import app_manager
    from ryu.controller import event, handler, ofp_event, ofp_handler
    from ryu.lib import hub
    from ryu.ofproto import ofproto_v1_3

    Application = app_manager.RyuApp
else:
    os.environ.setdefault("OSKEN_HUB_TYPE", "native")  # read when the hub is imported
    from os_ken import cfg
    from os_ken.base import app_manager
    from os_ken.controller import event, handler, ofp_event, ofp_handler
    from os_ken.lib import hub
    from os_ken.ofproto import ofproto_v1_3

    Application = app_manager.OSKenApp

LOG = logging.getLogger(__name__)

TICK_S = 0.05
ECHO_S = 1.0
"""A switch that is gone is noticed within this time: the engine finds out when it fails to send an echo
request."""
UNANSWERED_ECHOS = 15

_fabric: Fabric | None = None
_poll_s = 10.0


def serve(fabric: Fabric, host: str, port: int, *, poll_s: float) -> None:
    """Listen for switches until the process ends.

    Args:
        fabric: told everything the switches say.
        host, port: where to listen.
        poll_s: how often every switch is read again, for the counters and to find rules somebody has changed.
    """
    global _fabric, _poll_s
    _fabric, _poll_s = fabric, poll_s
    # The handler's module registers options, so it has to be imported before the options are parsed.
    LOG.debug("options registered by %s", ofp_handler.__name__)
    cfg.CONF(
        args=["--ofp-listen-host", host, "--ofp-tcp-listen-port", str(port)],
        project="stormbed-controller",
        default_config_files=[],
    )
    cfg.CONF.set_override("echo_request_interval", ECHO_S)
    cfg.CONF.set_override("maximum_unreplied_echo_requests", UNANSWERED_ECHOS)
    app_manager.AppManager.run_apps([__name__])


class EventTick(event.EventBase):
    """Time to read the switches again."""


class EventClock(event.EventBase):
    """Time has passed while the fabric waits for something."""


class Controller(Application):  # type: ignore[misc, valid-type]
    """Everything but the clock runs on the engine's one event thread of this application."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]  # noqa: RUF012 (the engine's interface)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert _fabric is not None, "started by serve()"
        self._fabric = _fabric
        self._datapaths: dict[int, Any] = {}
        self._partial: dict[int, list[Installed]] = {}
        self._ports: dict[int, dict[int, bool]] = {}
        self._told: Reroute | None = None

    def start(self) -> Any:
        result = super().start()
        self.threads.append(hub.spawn(self._tick))
        return result

    def _tick(self) -> None:
        due_s = time.monotonic() + _poll_s
        while True:
            hub.sleep(TICK_S)  # the application's clock; a refresh that HTTP asks for waits this long at most
            if self._fabric.refresh_wanted.is_set() or time.monotonic() >= due_s:
                self._fabric.refresh_wanted.clear()
                due_s = time.monotonic() + _poll_s
                self.send_event(self.name, EventTick())
            if self._fabric.steering.pending:
                self.send_event(self.name, EventClock())

    @handler.set_ev_cls(EventTick)
    def on_tick(self, _: EventTick) -> None:
        self._carry_out(self._fabric.poll(time.monotonic()))

    @handler.set_ev_cls(EventClock)
    def on_clock(self, _: EventClock) -> None:
        self._carry_out(self._fabric.on_time(time.monotonic()))

    @handler.set_ev_cls(ofp_event.EventOFPStateChange, [handler.MAIN_DISPATCHER, handler.DEAD_DISPATCHER])
    def on_state(self, ev: Any) -> None:
        datapath, number = ev.datapath, ev.datapath.id
        if ev.state == handler.MAIN_DISPATCHER:
            if number not in self._fabric.sessions:
                LOG.warning("switch %d is not of this topology; it is given no rules", number)
                self._fabric.note_stranger(number, here=True)
            else:
                LOG.info("switch %d (%s) connected", number, self._fabric.sites[number])
            self._datapaths[number] = datapath
            self._partial.pop(number, None)
            self._ports.pop(number, None)
            self._carry_out(self._fabric.on_connect(number, time.monotonic()))
        elif self._is_current(datapath):
            LOG.warning("switch %d disconnected", number)
            del self._datapaths[number]
            self._fabric.note_stranger(number, here=False)
            self._carry_out(self._fabric.on_disconnect(number, time.monotonic()))

    @handler.set_ev_cls(ofp_event.EventOFPFlowStatsReply, handler.MAIN_DISPATCHER)
    def on_flow_stats(self, ev: Any) -> None:
        datapath = ev.msg.datapath
        number = datapath.id
        if not self._is_current(datapath):
            return
        rules = self._partial.setdefault(number, [])
        rules += (_installed(datapath, stats) for stats in ev.msg.body)
        if ev.msg.flags & datapath.ofproto.OFPMPF_REPLY_MORE:
            return
        del self._partial[number]
        before = self._fabric.sessions[number].in_sync if number in self._fabric.sessions else False
        orders = self._fabric.on_rules(number, rules, time.monotonic())
        commands = [command for to, some in orders if to == number for command in some]
        changes = sum(isinstance(command, (Add, Delete)) for command in commands)
        if changes:
            level = logging.WARNING if before else logging.INFO
            LOG.log(level, "switch %d: %d rules to put right", number, changes)
        elif number in self._fabric.sessions and not before:
            session = self._fabric.sessions[number]
            LOG.info(
                "switch %d: %s", number, session.last_error or f"in sync with {len(session.wanted)} rules"
            )
        self._carry_out(orders)

    @handler.set_ev_cls(ofp_event.EventOFPBarrierReply, handler.MAIN_DISPATCHER)
    def on_barrier(self, ev: Any) -> None:
        datapath = ev.msg.datapath
        if self._is_current(datapath):
            self._carry_out(self._fabric.on_barrier(datapath.id, time.monotonic()))

    @handler.set_ev_cls(ofp_event.EventOFPErrorMsg, handler.MAIN_DISPATCHER)
    def on_error(self, ev: Any) -> None:
        msg, ofproto = ev.msg, ev.msg.datapath.ofproto
        kind = ofproto.ofp_error_type_to_str(msg.type)
        text = f"the switch refused: {kind}, {ofproto.ofp_error_code_to_str(msg.type, msg.code)}"
        LOG.error("switch %d: %s", msg.datapath.id, text)
        self._carry_out(self._fabric.on_error(msg.datapath.id, text, time.monotonic()))

    @handler.set_ev_cls(ofp_event.EventOFPPortDescStatsReply, handler.MAIN_DISPATCHER)
    def on_ports(self, ev: Any) -> None:
        datapath, ofproto = ev.msg.datapath, ev.msg.datapath.ofproto
        if not self._is_current(datapath):
            return
        ports = self._ports.setdefault(datapath.id, {})
        ports |= {p.port_no: _is_up(ofproto, p) for p in ev.msg.body if p.port_no <= ofproto.OFPP_MAX}
        if ev.msg.flags & ofproto.OFPMPF_REPLY_MORE:
            return
        del self._ports[datapath.id]
        down = sorted(number for number, up in ports.items() if not up)
        if down:
            LOG.info("switch %d: ports %s are down", datapath.id, ", ".join(map(str, down)))
        self._carry_out(self._fabric.on_ports(datapath.id, ports, time.monotonic()))

    @handler.set_ev_cls(ofp_event.EventOFPPortStatus, handler.MAIN_DISPATCHER)
    def on_port_status(self, ev: Any) -> None:
        datapath, port, ofproto = ev.msg.datapath, ev.msg.desc, ev.msg.datapath.ofproto
        if port.port_no > ofproto.OFPP_MAX or not self._is_current(datapath):
            return
        up = None if ev.msg.reason == ofproto.OFPPR_DELETE else _is_up(ofproto, port)
        state = "gone" if up is None else "up" if up else "down"
        LOG.info("switch %d: port %d is %s", datapath.id, port.port_no, state)
        self._carry_out(self._fabric.on_port(datapath.id, port.port_no, up, time.monotonic()))

    def _carry_out(self, orders: Orders) -> None:
        for number, commands in orders:
            datapath = self._datapaths.get(number)
            if datapath is not None:
                for command in commands:
                    datapath.send_msg(_message(datapath, command))
        self._tell_reroutes()

    def _tell_reroutes(self) -> None:
        last = self._fabric.steering.last
        if last is not None and last is not self._told:
            self._told = last
            links = self._fabric.topology.links
            down = ", ".join("-".join(links[i].endpoints) for i in last.links_down) or "none"
            LOG.info("%d primaries changed within %.3f s; links down: %s", last.pairs, last.seconds_s, down)

    def _is_current(self, datapath: Any) -> bool:
        """False for a connection that its switch has replaced; its last events may come late."""
        return datapath.id in self._datapaths and self._datapaths[datapath.id] is datapath


def _is_up(ofproto: Any, port: Any) -> bool:
    return not (port.state & ofproto.OFPPS_LINK_DOWN or port.config & ofproto.OFPPC_PORT_DOWN)


def _message(datapath: Any, command: Command) -> Any:
    """A command as a message of the engine."""
    parser, ofproto = datapath.ofproto_parser, datapath.ofproto
    match command:
        case ReadRules():
            return parser.OFPFlowStatsRequest(
                datapath, 0, ofproto.OFPTT_ALL, ofproto.OFPP_ANY, ofproto.OFPG_ANY, 0, 0, parser.OFPMatch()
            )
        case ReadPorts():
            return parser.OFPPortDescStatsRequest(datapath, 0)
        case Barrier():
            return parser.OFPBarrierRequest(datapath)
        case Add(rule):
            return parser.OFPFlowMod(
                datapath=datapath,
                command=ofproto.OFPFC_ADD,
                cookie=rule.cookie,
                table_id=rule.table,
                priority=rule.priority,
                match=_match(parser, rule.match),
                instructions=_instructions(parser, ofproto, rule),
            )
        case Delete(rule):
            return parser.OFPFlowMod(
                datapath=datapath,
                command=ofproto.OFPFC_DELETE_STRICT,
                cookie=rule.cookie,
                cookie_mask=COOKIE_MASK,
                table_id=rule.table,
                priority=rule.priority,
                match=_match(parser, rule.match),
                out_port=ofproto.OFPP_ANY,
                out_group=ofproto.OFPG_ANY,
            )


@cache
def _match(parser: Any, match: Match) -> Any:
    """The engine's object of a match. A path's is the same on all its switches, and takes half a rule's time."""
    return parser.OFPMatch(**dict(match))


def _instructions(parser: Any, ofproto: Any, rule: FlowRule) -> list[Any]:
    instructions = []
    if rule.output is not None:
        actions = [parser.OFPActionOutput(rule.output)]
        instructions.append(parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, actions))
    if rule.write_metadata is not None:
        instructions.append(parser.OFPInstructionWriteMetadata(*rule.write_metadata))
    if rule.goto is not None:
        instructions.append(parser.OFPInstructionGotoTable(rule.goto))
    return instructions


def _installed(datapath: Any, stats: Any) -> Installed:
    """What a switch reports about one rule; what no rule of ours has goes into `other`."""
    parser, ofproto = datapath.ofproto_parser, datapath.ofproto
    output = write = goto = None
    other = [
        f"{n}={getattr(stats, n)}" for n in ("idle_timeout", "hard_timeout", "flags") if getattr(stats, n)
    ]
    for instruction in stats.instructions:
        if isinstance(instruction, parser.OFPInstructionGotoTable):
            goto = instruction.table_id
        elif isinstance(instruction, parser.OFPInstructionWriteMetadata):
            write = (instruction.metadata, instruction.metadata_mask)
        elif (
            isinstance(instruction, parser.OFPInstructionActions)
            and instruction.type == ofproto.OFPIT_APPLY_ACTIONS
            and len(instruction.actions) == 1
            and isinstance(instruction.actions[0], parser.OFPActionOutput)
        ):
            output = instruction.actions[0].port
        else:
            other.append(str(instruction))
    rule = FlowRule(
        table=stats.table_id,
        priority=stats.priority,
        match=tuple(sorted(stats.match.items())),
        cookie=stats.cookie,
        output=output,
        write_metadata=write,
        goto=goto,
        other=tuple(other),
    )
    return Installed(rule, stats.packet_count, stats.byte_count)
