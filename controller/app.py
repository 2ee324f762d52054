"""The OpenFlow application: reports what switches say to the fabric and sends them the commands it answers.

The only file that imports the OpenFlow engine. The engine is os-ken, the maintained continuation of Ryu
with the same interface; with STORMBED_OPENFLOW_ENGINE=ryu the same application runs under Ryu itself.
OpenFlow 1.3 only.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from typing import Any

from controller.fabric import Fabric
from controller.rules import COOKIE_MASK, FlowRule
from controller.session import Add, Barrier, Command, Delete, Installed, ReadPorts, ReadRules

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

TICK_S = 0.2
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


class Controller(Application):  # type: ignore[misc, valid-type]
    """Everything but the clock runs on the engine's one event thread of this application."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]  # noqa: RUF012 (the engine's interface)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert _fabric is not None, "started by serve()"
        self._fabric = _fabric
        self._datapaths: dict[int, Any] = {}
        self._partial: dict[int, list[Installed]] = {}

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

    @handler.set_ev_cls(EventTick)
    def on_tick(self, _: EventTick) -> None:
        for number, datapath in list(self._datapaths.items()):
            self._send(datapath, self._fabric.tell(number, lambda session: session.on_tick(time.monotonic())))

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
            self._send(datapath, self._fabric.tell(number, lambda s: s.on_connect(time.monotonic())))
        elif self._is_current(datapath):
            LOG.warning("switch %d disconnected", number)
            del self._datapaths[number]
            self._fabric.note_stranger(number, here=False)
            self._fabric.tell(number, lambda session: session.on_disconnect())

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
        commands = self._fabric.on_rules(number, rules, time.monotonic())
        changes = sum(isinstance(command, (Add, Delete)) for command in commands)
        if changes:
            level = logging.WARNING if before else logging.INFO
            LOG.log(level, "switch %d: %d rules to put right", number, changes)
        elif number in self._fabric.sessions and not before:
            session = self._fabric.sessions[number]
            LOG.info(
                "switch %d: %s", number, session.last_error or f"in sync with {len(session.wanted)} rules"
            )
        self._send(datapath, commands)

    @handler.set_ev_cls(ofp_event.EventOFPBarrierReply, handler.MAIN_DISPATCHER)
    def on_barrier(self, ev: Any) -> None:
        datapath = ev.msg.datapath
        if self._is_current(datapath):
            self._send(datapath, self._fabric.tell(datapath.id, lambda s: s.on_barrier(time.monotonic())))

    @handler.set_ev_cls(ofp_event.EventOFPErrorMsg, handler.MAIN_DISPATCHER)
    def on_error(self, ev: Any) -> None:
        msg, ofproto = ev.msg, ev.msg.datapath.ofproto
        kind = ofproto.ofp_error_type_to_str(msg.type)
        text = f"the switch refused: {kind}, {ofproto.ofp_error_code_to_str(msg.type, msg.code)}"
        LOG.error("switch %d: %s", msg.datapath.id, text)
        self._fabric.tell(msg.datapath.id, lambda session: session.on_error(text))

    @handler.set_ev_cls(ofp_event.EventOFPPortDescStatsReply, handler.MAIN_DISPATCHER)
    def on_ports(self, ev: Any) -> None:
        for port in ev.msg.body:
            self._port(ev.msg.datapath, port, gone=False)

    @handler.set_ev_cls(ofp_event.EventOFPPortStatus, handler.MAIN_DISPATCHER)
    def on_port_status(self, ev: Any) -> None:
        datapath = ev.msg.datapath
        self._port(datapath, ev.msg.desc, gone=ev.msg.reason == datapath.ofproto.OFPPR_DELETE)

    def _port(self, datapath: Any, port: Any, *, gone: bool) -> None:
        ofproto = datapath.ofproto
        if port.port_no > ofproto.OFPP_MAX or not self._is_current(datapath):
            return
        down = port.state & ofproto.OFPPS_LINK_DOWN or port.config & ofproto.OFPPC_PORT_DOWN
        up = None if gone else not down
        state = "gone" if gone else "up" if up else "down"
        LOG.info("switch %d: port %d is %s", datapath.id, port.port_no, state)
        self._fabric.tell(datapath.id, lambda session: session.on_port(port.port_no, up))

    def _is_current(self, datapath: Any) -> bool:
        """False for a connection that its switch has replaced; its last events may come late."""
        return datapath.id in self._datapaths and self._datapaths[datapath.id] is datapath

    def _send(self, datapath: Any, commands: Iterable[Command]) -> None:
        for command in commands:
            datapath.send_msg(_message(datapath, command))


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
                match=parser.OFPMatch(**dict(rule.match)),
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
                match=parser.OFPMatch(**dict(rule.match)),
                out_port=ofproto.OFPP_ANY,
                out_group=ofproto.OFPG_ANY,
            )


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
