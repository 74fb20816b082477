//! A server for the GDB remote protocol, with LLDB's extensions for WebAssembly: LLDB 22 or later
//! connects by `process connect --plugin wasm connect://HOST:PORT`.
//!
//! The protocol has 64-bit addresses: a kind, the number of a module or memory, and an offset in it
//! (`gdbstub_arch::wasm::addr`). There is one module, with the number 0, whose code is at its
//! offsets in the binary module, and all of its memories. LLDB reads the module with its DWARF
//! through the connection. There is one register, `pc`; frames, locals, operands and globals have
//! separate packets. The client sees one thread at a time: the stopped one.
//!
//! A trap, and an exception that the program does not catch, stop the program with the signal that
//! a native program would get, before its frames are left; it ends when it is continued.
//!
//! A repeatable run also goes back (`bs`, `bc`). At the end of the run, the client sees the program
//! before its last instruction, at the end of the replay log; a client that continues from there
//! sees the same again.

mod packets;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use gdbstub::arch::lldb::{Encoding, Format, Generic, Register};
use gdbstub::common::{Endianness, Pid, Signal, Tid};
use gdbstub::conn::ConnectionExt;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{GdbStub, GdbStubError, SingleThreadStopReason};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::reverse_exec::{
    ReplayLogPosition, ReverseCont, ReverseContOps, ReverseStep, ReverseStepOps,
};
use gdbstub::target::ext::base::single_register_access::{SingleRegisterAccess, SingleRegisterAccessOps};
use gdbstub::target::ext::base::singlethread::{
    SingleThreadBase, SingleThreadResume, SingleThreadResumeOps, SingleThreadSingleStep,
    SingleThreadSingleStepOps,
};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwWatchpoint, HwWatchpointOps, SwBreakpoint, SwBreakpointOps, WatchKind,
};
use gdbstub::target::ext::host_info::{HostInfo, HostInfoOps, HostInfoResponse};
use gdbstub::target::ext::libraries::{Libraries, LibrariesOps};
use gdbstub::target::ext::lldb_register_info_override::{
    Callback, CallbackToken, LldbRegisterInfoOverride, LldbRegisterInfoOverrideOps,
};
use gdbstub::target::ext::process_info::{ProcessInfo, ProcessInfoOps, ProcessInfoResponse};
use gdbstub::target::ext::wasm::{Wasm, WasmOps};
use gdbstub::target::{Target, TargetError, TargetResult};
use gdbstub_arch::wasm::addr::{WasmAddr, WasmAddrType};
use gdbstub_arch::wasm::reg::WasmRegisters;
use gdbstub_arch::wasm::reg::id::WasmRegId;
use wasm_jit::probes::{Location, Place};
use wasm_jit::{Trap, Val};

use self::packets::{Packets, Sent, Wire};
use crate::{Debugger, Error, Event, Expression, Reason, Resume, Reverse, Stop};

/// Maximum time to wait for an event of the program before the connection is read again.
const POLL: Duration = Duration::from_millis(5);

/// Maximum number of bytes that are read before the program has stopped for the first time.
const MAX_EARLY: usize = 64 << 10;

const TRIPLE: &str = "wasm32-unknown-unknown-wasm";

/// The end of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum GdbEnd {
    /// The client has detached. The program was [released](Debugger::release).
    Detached,
    /// The client has killed the program.
    Killed,
    /// The program has ended, with this outcome.
    Ended(crate::Outcome),
}

/// Serves a client until it detaches. A thread of the program must be stopped, or about to be
/// stopped by an earlier pause or breakpoint.
///
/// # Errors
/// The connection fails, or the client breaks the protocol. The program was
/// [released](Debugger::release), as if the client had detached.
pub fn serve(debugger: &Debugger, connection: impl ConnectionExt<Error = io::Error>) -> io::Result<GdbEnd> {
    let mut client = Client {
        debugger,
        breakpoints: HashMap::new(),
        watches: HashMap::new(),
        pc: 0,
        outcome: None,
        is_killed: false,
        is_at_end: false,
        is_told: false,
    };
    let mut attached = Attached { debugger, is_released: true, caught_traps: debugger.catches_traps() };
    debugger.catch_traps(true);
    let served = client.serve(connection);
    attached.is_released = !client.is_killed && client.outcome.is_none();
    if client.is_killed {
        client.delete_all();
        debugger.kill();
        return served.map(|()| GdbEnd::Killed);
    }
    match client.outcome.take() {
        // It no longer matters whether the client still listens.
        Some(outcome) => {
            client.delete_all();
            Ok(GdbEnd::Ended(outcome))
        }
        None => served.map(|()| GdbEnd::Detached),
    }
}

/// A client that is attached. When it is gone, for whatever reason, nothing stops the program.
struct Attached<'d> {
    debugger: &'d Debugger,
    is_released: bool,
    caught_traps: bool,
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        match self.is_released {
            true => self.debugger.release(),
            false => self.debugger.catch_traps(self.caught_traps),
        }
    }
}

struct Client<'d> {
    debugger: &'d Debugger,
    /// Breakpoint numbers, by address.
    breakpoints: HashMap<u64, u32>,
    /// Watchpoint numbers, by address and length.
    watches: HashMap<(u64, u64), u32>,
    pc: u64,
    outcome: Option<crate::Outcome>,
    is_killed: bool,
    /// Whether a repeatable run has reached its end, and goes back to its last instruction.
    is_at_end: bool,
    /// Whether a new stub gets the client's settings: it must not resume the program then.
    is_told: bool,
}

type Reported = SingleThreadStopReason<u64>;

type Stub<'a, T, C> = GdbStubStateMachine<'a, T, Wire<'a, C>>;

type StubError = GdbStubError<&'static str, io::Error>;

/// Whether an error is not due to the packet during which it occurred.
fn is_fatal(error: &StubError) -> bool {
    error.is_connection_error() || error.is_target_error()
}

/// The connection, if the stub receives packets.
fn wire_of<'g, 'a, T: Target, C: ConnectionExt>(gdb: &'g mut Stub<'a, T, C>) -> Option<&'g mut Wire<'a, C>> {
    match gdb {
        GdbStubStateMachine::Idle(idle) => Some(idle.borrow_conn()),
        GdbStubStateMachine::Running(running) => Some(running.borrow_conn()),
        _ => None,
    }
}

fn broken(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl Client<'_> {
    fn serve(&mut self, mut connection: impl ConnectionExt<Error = io::Error>) -> io::Result<()> {
        // The client asks why the program has stopped, so it must have stopped.
        let mut early = VecDeque::new();
        if !self.debugger.is_stopped() {
            self.wait_first(&mut connection, &mut early)?;
        }
        self.see_pc();
        let mut packets = Packets::default();
        let mut is_running = false;
        while !self.converse(&mut connection, &mut early, &mut packets, &mut is_running)? {
            packets.refuse(&mut connection)?;
        }
        Ok(())
    }

    /// Serves the client with one stub. Returns whether the client has detached; otherwise the last
    /// packet was malformed, and has no answer yet.
    fn converse<C: ConnectionExt<Error = io::Error>>(
        &mut self,
        connection: &mut C,
        early: &mut VecDeque<u8>,
        packets: &mut Packets,
        is_running: &mut bool,
    ) -> io::Result<bool> {
        let wire = Wire { connection, early, is_mute: true };
        let mut gdb = GdbStub::new(wire).run_state_machine(self).map_err(broken)?;
        self.is_told = true;
        for byte in packets.settings(*is_running) {
            gdb = self.receive(gdb, byte).map_err(broken)?;
        }
        self.is_told = false;
        if let Some(wire) = wire_of(&mut gdb) {
            wire.is_mute = false;
        }
        loop {
            *is_running = matches!(gdb, GdbStubStateMachine::Running(_));
            if let Some(wire) = wire_of(&mut gdb)
                && (!*is_running || ConnectionExt::peek(wire)?.is_some())
            {
                let packet = match packets.add(ConnectionExt::read(wire)?) {
                    Sent::Nothing => continue,
                    Sent::TooLong => return Ok(false),
                    Sent::Complete(packet) => packet,
                };
                for byte in &packet {
                    gdb = match self.receive(gdb, *byte) {
                        Ok(gdb) => gdb,
                        Err(error) if is_fatal(&error) || packet.len() == 1 => return Err(broken(error)),
                        Err(_) => return Ok(false),
                    };
                }
                packets.understood(packet);
                continue;
            }
            gdb = match gdb {
                GdbStubStateMachine::Idle(idle) => idle.into(),
                GdbStubStateMachine::Running(running) => {
                    if let Some(reason) = self.debugger.wait_for(POLL).and_then(|event| self.reason(event)) {
                        let pc = self.pc.to_le_bytes();
                        let mut registers = std::iter::once((WasmRegId::Pc, &pc[..]));
                        match reason {
                            Reported::Exited(_) | Reported::Terminated(_) => {
                                running.report_stop(self, reason)
                            }
                            _ => running.report_stop_with_regs(self, reason, &mut registers),
                        }
                        .map_err(broken)?
                    } else {
                        running.into()
                    }
                }
                GdbStubStateMachine::CtrlCInterrupt(interrupt) => {
                    self.debugger.pause();
                    interrupt.interrupt_handled(self, None::<Reported>).map_err(broken)?
                }
                GdbStubStateMachine::Disconnected(ended) => {
                    self.is_killed = matches!(ended.get_reason(), gdbstub::stub::DisconnectReason::Kill);
                    return Ok(true);
                }
            };
        }
    }

    /// Passes a byte of the client to the stub.
    fn receive<'a, C: ConnectionExt<Error = io::Error>>(
        &mut self,
        gdb: Stub<'a, Self, C>,
        byte: u8,
    ) -> Result<Stub<'a, Self, C>, StubError> {
        match gdb {
            GdbStubStateMachine::Idle(idle) => idle.incoming_data(self, byte),
            GdbStubStateMachine::Running(running) => running.incoming_data(self, byte),
            other => Ok(other),
        }
    }

    fn delete_all(&self) {
        let numbers = self.breakpoints.values().chain(self.watches.values());
        numbers.for_each(|number| _ = self.debugger.delete(*number));
    }

    /// Waits for the first stop. What the client has sent in the meantime is read, since only so is
    /// it known whether the client is still there.
    fn wait_first(
        &mut self,
        connection: &mut impl ConnectionExt<Error = io::Error>,
        early: &mut VecDeque<u8>,
    ) -> io::Result<()> {
        loop {
            match self.debugger.wait_for(POLL) {
                Some(Event::Stopped(_)) => return Ok(()),
                Some(Event::Ended(outcome)) => {
                    self.outcome = Some(outcome);
                    return Err(io::Error::other("the program has ended before it was stopped"));
                }
                None => {
                    while early.len() < MAX_EARLY && connection.peek()?.is_some() {
                        early.push_back(connection.read()?);
                    }
                }
            }
        }
    }

    fn see_pc(&mut self) {
        let location = self.debugger.inspect(|stopped| stopped.locations().first().copied().flatten());
        if let Ok(Some(location)) = location {
            self.pc = code_address(self.debugger.code().module_offset(location));
        }
    }

    /// The stop reason that is reported; `None` if another event will follow.
    fn reason(&mut self, event: Event) -> Option<Reported> {
        match event {
            Event::Stopped(stop) => Some(self.stopped(&stop)),
            Event::Ended(outcome) => {
                let was_at_end = std::mem::replace(&mut self.is_at_end, true);
                if !was_at_end && self.debugger.reverse(Reverse::StepInstruction, 1).is_ok() {
                    return None;
                }
                let reported = match outcome.has_failed {
                    true => Reported::Terminated(Signal::SIGABRT),
                    false => Reported::Exited(outcome.code),
                };
                self.outcome = Some(outcome);
                Some(reported)
            }
        }
    }

    fn stopped(&mut self, stop: &Stop) -> Reported {
        self.pc = code_address(self.debugger.code().module_offset(stop.location));
        let log = |pos| Reported::ReplayLog { tid: Some(()), pos };
        if std::mem::take(&mut self.is_at_end) {
            return log(ReplayLogPosition::End);
        }
        for reason in &stop.reasons {
            match reason {
                Reason::Watch { number, .. } | Reason::OutOfScope { number, .. } => {
                    if let Some(((addr, _), _)) = self.watches.iter().find(|(_, of)| *of == number) {
                        return Reported::Watch { tid: (), kind: WatchKind::Write, addr: *addr };
                    }
                }
                Reason::Breakpoint { .. } => return Reported::SwBreak(()),
                Reason::Pause => return signal(Signal::SIGINT),
                Reason::Trapped { trap } => return signal(signal_of(*trap)),
                // As for a native exception that is not caught.
                Reason::Thrown { .. } | Reason::Failed { .. } => return signal(Signal::SIGABRT),
                Reason::HistoryStart => return log(ReplayLogPosition::Begin),
                _ => {}
            }
        }
        signal(Signal::SIGTRAP)
    }

    fn location(&self, address: u64) -> Option<Location> {
        let address = WasmAddr::from_raw(address)?;
        let is_code = address.addr_type() == WasmAddrType::Object && address.module_index() == 0;
        self.debugger.code().at(u64::from(address.offset())).ok().filter(|_| is_code)
    }

    /// Copies a value of a frame; copies 0 if there is none.
    fn value(
        &self,
        buffer: &mut [u8],
        find: impl FnOnce(&mut crate::Stopped<'_, '_>) -> Result<Val, Error> + Send + 'static,
    ) -> usize {
        let Ok(Ok(value)) = self.debugger.inspect(find) else { return 0 };
        let (bits, length): (u128, usize) = match value {
            Val::I32(value) => (value.cast_unsigned().into(), 4),
            Val::I64(value) => (value.cast_unsigned().into(), 8),
            Val::F32(bits) => (bits.into(), 4),
            Val::F64(bits) => (bits.into(), 8),
            Val::V128(bits) => (bits, 16),
            // Whether the reference is null.
            reference => (u128::from(!reference.is_null()), 4),
        };
        let length = length.min(buffer.len());
        buffer[..length].copy_from_slice(&u128::to_le_bytes(bits)[..length]);
        length
    }
}

/// A report that includes the thread, and therefore its registers: without them, LLDB assumes that
/// the program counter is unchanged.
fn signal(signal: Signal) -> Reported {
    Reported::SignalWithThread { tid: (), signal }
}

/// The signal with which a native program would have stopped.
fn signal_of(trap: Trap) -> Signal {
    match trap {
        Trap::IntegerDivisionByZero | Trap::IntegerOverflow | Trap::BadConversionToInteger => Signal::SIGFPE,
        Trap::MemoryOutOfBounds
        | Trap::StackOverflow
        | Trap::TableOutOfBounds
        | Trap::UndefinedElement
        | Trap::IndirectCallToNull
        | Trap::NullReference
        | Trap::ArrayOutOfBounds
        | Trap::StringOutOfBounds => Signal::SIGSEGV,
        Trap::HeapMisaligned => Signal::SIGBUS,
        Trap::UnreachableCodeReached => Signal::SIGILL,
        _ => Signal::SIGTRAP,
    }
}

fn code_address(offset: u64) -> u64 {
    let offset = u32::try_from(offset).unwrap_or(u32::MAX);
    WasmAddr::new(WasmAddrType::Object, 0, offset).map_or(0, WasmAddr::as_raw)
}

impl Target for Client<'_> {
    type Arch = gdbstub_arch::wasm::Wasm;
    type Error = &'static str;

    fn base_ops(&mut self) -> BaseOps<'_, Self::Arch, Self::Error> {
        BaseOps::SingleThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_host_info(&mut self) -> Option<HostInfoOps<'_, Self>> {
        Some(self)
    }

    fn support_process_info(&mut self) -> Option<ProcessInfoOps<'_, Self>> {
        Some(self)
    }

    fn support_libraries(&mut self) -> Option<LibrariesOps<'_, Self>> {
        Some(self)
    }

    fn support_lldb_register_info_override(&mut self) -> Option<LldbRegisterInfoOverrideOps<'_, Self>> {
        Some(self)
    }

    fn support_wasm(&mut self) -> Option<WasmOps<'_, Self>> {
        Some(self)
    }
}

impl SingleThreadBase for Client<'_> {
    fn read_registers(&mut self, registers: &mut WasmRegisters) -> TargetResult<(), Self> {
        registers.pc = self.pc;
        Ok(())
    }

    fn write_registers(&mut self, _: &WasmRegisters) -> TargetResult<(), Self> {
        Err(TargetError::NonFatal)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8]) -> TargetResult<usize, Self> {
        let start = WasmAddr::from_raw(start).ok_or(TargetError::NonFatal)?;
        let (number, offset) = (start.module_index(), u64::from(start.offset()));
        let length = data.len();
        let clip = |size: u64| length.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        if start.addr_type() == WasmAddrType::Object {
            let bytes = self.debugger.code().module().bytes();
            let length = if number == 0 { clip(bytes.len() as u64) } else { 0 };
            let found = bytes.get(offset as usize..).filter(|_| length > 0).ok_or(TargetError::NonFatal)?;
            data[..length].copy_from_slice(&found[..length]);
            return Ok(length);
        }
        let read = self.debugger.inspect(move |stopped| {
            let frame = stopped.probe_frame();
            let available = frame.memory_size(number).unwrap_or(0).saturating_sub(offset);
            let mut bytes = vec![0; length.min(usize::try_from(available).unwrap_or(usize::MAX))];
            frame.read_memory(number, offset, &mut bytes).map(|()| bytes)
        });
        // Nothing is an error: the stub would go on to ask for the rest.
        let Some(bytes) = read.ok().and_then(Result::ok).filter(|bytes| !bytes.is_empty()) else {
            return Err(TargetError::NonFatal);
        };
        data[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn write_addrs(&mut self, start: u64, data: &[u8]) -> TargetResult<(), Self> {
        let start = WasmAddr::from_raw(start).ok_or(TargetError::NonFatal)?;
        if start.addr_type() == WasmAddrType::Object {
            return Err(TargetError::NonFatal);
        }
        let (number, offset, bytes) = (start.module_index(), u64::from(start.offset()), data.to_vec());
        let write = move |stopped: &mut crate::Stopped<'_, '_>| {
            stopped.frame(0)?.write_memory(number, offset, &bytes)
        };
        match self.debugger.inspect(write) {
            Ok(Ok(())) => Ok(()),
            _ => Err(TargetError::NonFatal),
        }
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, (), Self>> {
        Some(self)
    }

    fn support_resume(&mut self) -> Option<SingleThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl SingleRegisterAccess<()> for Client<'_> {
    fn read_register(&mut self, (): (), _: WasmRegId, buffer: &mut [u8]) -> TargetResult<usize, Self> {
        let bytes = self.pc.to_le_bytes();
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn write_register(&mut self, (): (), _: WasmRegId, _: &[u8]) -> TargetResult<(), Self> {
        Err(TargetError::NonFatal)
    }
}

impl SingleThreadResume for Client<'_> {
    fn resume(&mut self, _: Option<Signal>) -> Result<(), &'static str> {
        if self.is_told {
            return Ok(());
        }
        self.debugger.resume(Resume::Continue).map_err(|_| "the program is not stopped")
    }

    fn support_single_step(&mut self) -> Option<SingleThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_reverse_step(&mut self) -> Option<ReverseStepOps<'_, (), Self>> {
        if self.debugger.can_reverse() { Some(self) } else { None }
    }

    fn support_reverse_cont(&mut self) -> Option<ReverseContOps<'_, (), Self>> {
        if self.debugger.can_reverse() { Some(self) } else { None }
    }
}

impl ReverseStep<()> for Client<'_> {
    fn reverse_step(&mut self, (): ()) -> Result<(), &'static str> {
        self.debugger.reverse(Reverse::StepInstruction, 1).map_err(|_| "the program is not stopped")
    }
}

impl ReverseCont<()> for Client<'_> {
    fn reverse_cont(&mut self) -> Result<(), &'static str> {
        self.debugger.reverse(Reverse::Continue, 1).map_err(|_| "the program is not stopped")
    }
}

impl SingleThreadSingleStep for Client<'_> {
    fn step(&mut self, _: Option<Signal>) -> Result<(), &'static str> {
        self.debugger.resume(Resume::StepInstruction).map_err(|_| "the program cannot be stepped")
    }
}

impl Breakpoints for Client<'_> {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Client<'_> {
    fn add_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        let Some(location) = self.location(address) else { return Ok(false) };
        let text = format!("*{:#x}", self.debugger.code().module_offset(location));
        match self.debugger.add_breakpoint_at(&text, vec![location], None, false) {
            Ok(number) => {
                let before = self.breakpoints.insert(address, number);
                before.into_iter().for_each(|before| _ = self.debugger.delete(before));
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    }

    fn remove_sw_breakpoint(&mut self, address: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.breakpoints.remove(&address).is_some_and(|number| self.debugger.delete(number).is_ok()))
    }
}

impl HwWatchpoint for Client<'_> {
    fn add_hw_watchpoint(&mut self, address: u64, length: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        let load = match length {
            1 => "u8",
            2 => "u16",
            4 => "u32",
            8 => "i64",
            _ => return Ok(false),
        };
        let is_memory = WasmAddr::from_raw(address).filter(|at| at.addr_type() == WasmAddrType::Memory);
        let (Some(at), WatchKind::Write) = (is_memory, kind) else { return Ok(false) };
        let Ok(expression) = Expression::parse(&format!("{load}[{}:{}]", at.module_index(), at.offset()))
        else {
            return Ok(false);
        };
        match self.debugger.add_watch(expression, None, 0) {
            // There is no way to tell the client that it may miss changes.
            Ok(number) if self.debugger.unwatched().is_some() => {
                let _ = self.debugger.delete(number);
                Ok(false)
            }
            Ok(number) => {
                let before = self.watches.insert((address, length), number);
                before.into_iter().for_each(|before| _ = self.debugger.delete(before));
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    }

    fn remove_hw_watchpoint(&mut self, address: u64, length: u64, _: WatchKind) -> TargetResult<bool, Self> {
        let number = self.watches.remove(&(address, length));
        Ok(number.is_some_and(|number| self.debugger.delete(number).is_ok()))
    }
}

impl HostInfo for Client<'_> {
    fn host_info(&self, write: &mut dyn FnMut(&HostInfoResponse<'_>)) -> Result<(), &'static str> {
        write(&HostInfoResponse::Triple(TRIPLE));
        write(&HostInfoResponse::Endianness(Endianness::Little));
        write(&HostInfoResponse::PointerSize(4));
        Ok(())
    }
}

impl ProcessInfo for Client<'_> {
    fn process_info(&self, write: &mut dyn FnMut(&ProcessInfoResponse<'_>)) -> Result<(), &'static str> {
        // The process id of threads in the stub's packets.
        write(&ProcessInfoResponse::Pid(Pid::MIN));
        write(&ProcessInfoResponse::Triple(TRIPLE));
        write(&ProcessInfoResponse::Endianness(Endianness::Little));
        write(&ProcessInfoResponse::PointerSize(4));
        Ok(())
    }
}

impl LldbRegisterInfoOverride for Client<'_> {
    fn lldb_register_info<'a>(
        &mut self,
        register: usize,
        info: Callback<'a>,
    ) -> Result<CallbackToken<'a>, &'static str> {
        if register != 0 {
            return Ok(info.done());
        }
        Ok(info.write(Register {
            name: "pc",
            alt_name: Some("pc"),
            bitsize: 64,
            offset: 0,
            encoding: Encoding::Uint,
            format: Format::Hex,
            set: "General Purpose Registers",
            gcc: Some(16),
            dwarf: Some(16),
            generic: Some(Generic::Pc),
            container_regs: None,
            invalidate_regs: None,
        }))
    }
}

impl Libraries for Client<'_> {
    fn get_libraries(&self, offset: u64, length: usize, buffer: &mut [u8]) -> TargetResult<usize, Self> {
        // The address of the binary module's first byte.
        let address = code_address(0);
        let text = format!(
            "<library-list><library name=\"module.wasm\"><section address=\"{address:#x}\"/></library></library-list>"
        );
        let rest = text.as_bytes().get(offset as usize..).unwrap_or_default();
        let length = length.min(rest.len()).min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

impl Wasm for Client<'_> {
    fn wasm_call_stack(&self, _: Tid, next: &mut dyn FnMut(u64)) -> Result<(), &'static str> {
        let locations = self.debugger.inspect(|stopped| stopped.locations().to_vec());
        let code = self.debugger.code();
        for (level, location) in locations.unwrap_or_default().into_iter().enumerate() {
            let offset = location.map_or(0, |location| match level {
                0 => code.module_offset(location),
                // Callers are at the instruction at which they continue.
                _ => code.module_offset(after(code, location)),
            });
            next(code_address(offset));
        }
        Ok(())
    }

    fn read_wasm_local(
        &self,
        _: Tid,
        frame: usize,
        local: usize,
        buffer: &mut [u8],
    ) -> Result<usize, &'static str> {
        Ok(self.value(buffer, move |stopped| {
            stopped.frame(frame)?.local(u32::try_from(local).unwrap_or(u32::MAX))
        }))
    }

    fn read_wasm_stack(
        &self,
        _: Tid,
        frame: usize,
        index: usize,
        buffer: &mut [u8],
    ) -> Result<usize, &'static str> {
        Ok(self.value(buffer, move |stopped| {
            stopped.frame(frame)?.operand(u32::try_from(index).unwrap_or(u32::MAX))
        }))
    }

    fn read_wasm_global(
        &self,
        _: Tid,
        frame: usize,
        global: usize,
        buffer: &mut [u8],
    ) -> Result<usize, &'static str> {
        Ok(self.value(buffer, move |stopped| {
            stopped.frame(frame)?.global(u32::try_from(global).unwrap_or(u32::MAX))
        }))
    }
}

/// The instruction after a call.
fn after(code: &crate::Code, call: Location) -> Location {
    let next = code.body(call.function).ok().and_then(|body| body.place(body.index(call.place) + 1));
    let place: Place = next.unwrap_or(call.place);
    Location { function: call.function, place }
}
