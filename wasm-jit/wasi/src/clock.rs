//! `clock_res_get`, `clock_time_get`.

use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};

use super::context::WasiCtx;
use super::errno::{Errno, Outcome};
use super::memory::GuestMemory;
use super::types::timestamp;

/// The host's clock for a WASI clock id.
pub(crate) fn clock_id(id: u32) -> Result<ClockId, Errno> {
    match id {
        0 => Ok(ClockId::Realtime),
        1 => Ok(ClockId::Monotonic),
        2 => Ok(ClockId::ProcessCPUTime),
        3 => Ok(ClockId::ThreadCPUTime),
        _ => Err(Errno::Inval),
    }
}

fn nanoseconds(time: Timespec) -> u64 {
    timestamp(time.tv_sec, time.tv_nsec)
}

/// A clock's time in nanoseconds.
pub(crate) fn now(clock: ClockId) -> u64 {
    nanoseconds(clock_gettime(clock))
}

impl WasiCtx {
    pub(crate) fn clock_res_get(&self, memory: &GuestMemory<'_>, id: u32, resolution: u32) -> Outcome {
        memory.write_u64(resolution, nanoseconds(clock_getres(clock_id(id)?)))
    }

    /// The requested precision is ignored.
    pub(crate) fn clock_time_get(
        &self,
        memory: &GuestMemory<'_>,
        id: u32,
        _precision: u64,
        time: u32,
    ) -> Outcome {
        memory.write_u64(time, now(clock_id(id)?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::WasiCtxBuilder;
    use super::super::errno::{Errno, Failure};
    use super::super::testing::Program;

    #[test]
    fn clocks_run_and_have_a_resolution() {
        let wasi = WasiCtxBuilder::new().build();
        let program = Program::new();
        let memory = program.memory();
        for id in 0..4 {
            wasi.clock_res_get(&memory, id, 0).unwrap();
            assert!((1..=1_000_000_000).contains(&program.u64(0)), "clock {id}");
            wasi.clock_time_get(&memory, id, 0, 8).unwrap();
            wasi.clock_time_get(&memory, id, 0, 16).unwrap();
            assert!(program.u64(8) > 0 && program.u64(16) >= program.u64(8), "clock {id}");
        }
        let year_2020 = 1_577_836_800_000_000_000;
        wasi.clock_time_get(&memory, 0, 0, 0).unwrap();
        assert!(program.u64(0) > year_2020);
        assert_eq!(wasi.clock_time_get(&memory, 4, 0, 0), Err(Failure::Errno(Errno::Inval)));
    }
}
