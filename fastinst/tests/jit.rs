//! A small provider that works like a JIT compiler: modules with probes are made, executed and
//! freed, one after the other, while other threads toggle the probes of the current module.
//!
//! Whether a call succeeds or comes too late depends on chance, but each must have one of these
//! results, and all memory of freed modules must be released. Nothing depends on time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CString;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use callpatch::{CallSite, Clobbers, Switch};
use fastinst::group::{Group, ReservedIds, Sites};
use fastinst::{Discovery, Error, ProbeFn, ProbeId, ProbeKind, ProbeMetadata, Toggle};
use wordpatch::code_memory::{CodeBuffer, CodeMemory};

/// Number of modules that are made and freed.
const MODULES: u32 = 100_000;

/// Number of modules after which everything that is allocated only once has been allocated.
const WARMED_UP: u32 = 10_000;

/// Number of bytes by which the allocated memory may grow after that: far less than a byte per id.
const TOLERANCE: usize = 64 << 10;

/// Number of threads that toggle probes.
const TOGGLERS: usize = 2;

/// The index of the probe of each module that is toggled only by the thread that has made the
/// module.
const OWN: u32 = 7;

/// One in this number of modules has more probes than a block of ids.
const LARGE_EVERY: u32 = 16;

/// One in this number of modules is executed.
const EXECUTED_EVERY: u32 = 50;

/// Counts the allocated bytes.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's obligation.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's obligation.
        unsafe { System.dealloc(pointer, layout) };
    }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted").lines().count()
}

/// Number of existing modules.
static ALIVE: AtomicUsize = AtomicUsize::new(0);

/// Number of calls to [`count`].
static FIRED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn count(_: ProbeId, _: usize, _: usize) {
    FIRED.fetch_add(1, Ordering::Relaxed);
}

const COUNT: ProbeFn = count;

/// The code of a module: functions that call their stubs, which jump through their cells.
struct Module {
    sites: Box<[Switch]>,
    functions: Box<[usize]>,
    /// The targets of the stubs.
    cells: Box<[AtomicUsize]>,
    name: CString,
    first: u32,
    /// Freed with the rest: no thread executes it then, and no call to a method is in progress.
    _code: CodeMemory,
}

/// `sub rsp, 8; call STUB; add rsp, 8; ret`, with the call's operand to be filled in.
const FUNCTION: [u8; 14] = [0x48, 0x83, 0xec, 8, 0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xc4, 8, 0xc3];
const CALL: usize = 4;
const FUNCTION_SIZE: usize = 16;

/// `mov edi, ID; mov rax, CELL; jmp [rax]`.
fn stub(id: u32, cell: &AtomicUsize) -> Vec<u8> {
    let cell = (&raw const *cell).expose_provenance();
    [&[0xbf][..], &id.to_le_bytes(), &[0x48, 0xb8], &cell.to_le_bytes(), &[0xff, 0x20]].concat()
}

impl Module {
    fn compile(ids: &ReservedIds) -> Self {
        let (first, count) = (ids.range().start, ids.range().len());
        let cells: Box<[AtomicUsize]> = (0..count).map(|_| AtomicUsize::new(COUNT as usize)).collect();
        let mut buffer = CodeBuffer::new(count * 4 * FUNCTION_SIZE).expect("memory for code");
        let stubs: Vec<usize> = (0..count)
            .map(|index| {
                buffer.append(&stub(first + index as u32, &cells[index]), 16).expect("there is room")
            })
            .collect();
        let places: Vec<usize> = (0..count)
            .map(|index| {
                let place = buffer.len().next_multiple_of(FUNCTION_SIZE);
                let mut function = FUNCTION;
                let distance = stubs[index] as i32 - (place + CALL + 5) as i32;
                function[CALL + 1..CALL + 5].copy_from_slice(&distance.to_le_bytes());
                assert_eq!(buffer.append(&function, FUNCTION_SIZE), Some(place));
                place
            })
            .collect();
        let code = buffer.seal().expect("code can be made executable");
        let functions: Box<[usize]> = places.iter().map(|place| code.address() + place).collect();
        let switch = |function: &usize| {
            // SAFETY: a call in our own code, which is not executed yet, and is correct without
            // it.
            let site = unsafe { CallSite::decode(function + CALL, Clobbers::CallerSaved) }.expect("a call");
            site.deactivate().expect("it is switched off");
            site.switch()
        };
        let sites = functions.iter().map(switch).collect();
        let name = CString::new(format!("module {first}")).expect("no NUL");
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Self { sites, functions, cells, name, first, _code: code }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sites for Module {
    unsafe fn activate(&self, index: u32, function: ProbeFn) -> Result<Toggle, Error> {
        self.cells[index as usize].store(function as usize, Ordering::Release);
        Ok(self.sites[index as usize].activate()?)
    }

    fn deactivate(&self, index: u32) -> Result<Toggle, Error> {
        Ok(self.sites[index as usize].deactivate()?)
    }

    fn metadata(&self, index: u32, id: ProbeId) -> ProbeMetadata<'_> {
        let mut metadata = ProbeMetadata::new(id, c"jit", ProbeKind::FIRST_OF_PROVIDERS);
        metadata.function_name = &self.name;
        metadata.site_address = self.functions[index as usize] + CALL;
        metadata.object_base = self.first as usize;
        metadata
    }
}

/// The first id of the current module, or of the last one.
static CURRENT: AtomicU32 = AtomicU32::new(0);

/// Set when the last module has been made.
static IS_LAST: AtomicBool = AtomicBool::new(false);

/// The results of a thread's calls.
#[derive(Debug, Default)]
struct Answers {
    done: u64,
    undiscovered: u64,
    retired: u64,
    /// Successful calls for the last module.
    done_at_last: u64,
}

impl Answers {
    fn count<T>(&mut self, id: u32, answer: Result<T, Error>) -> Option<T> {
        match answer {
            Ok(answer) => {
                self.done += 1;
                self.done_at_last += u64::from(IS_LAST.load(Ordering::Relaxed));
                return Some(answer);
            }
            Err(Error::Undiscovered { id: refused }) if refused.0 == id => self.undiscovered += 1,
            Err(Error::Retired { id: refused }) if refused.0 == id => self.retired += 1,
            Err(error) => panic!("probe {id}: {error}"),
        }
        None
    }
}

/// Toggles probes of the current module, until enough calls for the last one have succeeded.
fn toggle(begin: &Barrier) -> Answers {
    let mut answers = Answers::default();
    begin.wait();
    while answers.done_at_last < 1_000 {
        let first = CURRENT.load(Ordering::Acquire);
        for id in first..first + OWN {
            // SAFETY: `count` may be called at any time.
            answers.count(id, unsafe { fastinst::activate(ProbeId(id), COUNT) });
            let read = |metadata: &ProbeMetadata<'_>| {
                let name = format!("module {}", metadata.object_base);
                assert_eq!(metadata.function_name.to_str(), Ok(&*name));
                (metadata.id.0, metadata.object_base as u32)
            };
            if let Some(known) = answers.count(id, fastinst::with_metadata(ProbeId(id), read)) {
                assert_eq!(known, (id, first));
            }
            answers.count(id, fastinst::deactivate(ProbeId(id)));
        }
    }
    answers
}

/// Executes the function of the module's own probe, with the probe on and off.
fn execute(id: ProbeId, function: usize) {
    // SAFETY: the module's code, which has such functions.
    let function = unsafe { std::mem::transmute::<usize, extern "C" fn()>(function) };
    let fired = |expected| {
        wordpatch::serialize_all_cores().expect("membarrier is allowed");
        let before = FIRED.load(Ordering::Relaxed);
        function();
        assert_eq!(FIRED.load(Ordering::Relaxed) - before, expected);
    };
    fired(0);
    // SAFETY: `count` may be called at any time.
    unsafe { fastinst::activate(id, COUNT) }.expect("the module is there");
    fired(1);
    fastinst::deactivate(id).expect("the module is there");
    fired(0);
}

/// Makes a module and announces its probes; some modules are executed.
fn load(number: u32) -> Group {
    let probes = if number.is_multiple_of(LARGE_EVERY) { 72 } else { OWN + 1 };
    let ids = ReservedIds::new(probes).expect("there are ids");
    let module = Module::compile(&ids);
    let own = module.functions[OWN as usize];
    let group = ids.with_sites(module);
    CURRENT.store(group.range().start, Ordering::Release);
    let discovery = Discovery::begin().expect("not in a callback");
    (0..probes).for_each(|index| group.announce(&discovery, index));
    drop(discovery);
    if number.is_multiple_of(EXECUTED_EVERY) {
        execute(group.id(OWN), own);
    }
    group
}

fn is_retired<T>(id: ProbeId, answer: Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Retired { id: refused }) if refused == id)
}

#[test]
fn modules_come_and_go_while_other_threads_switch_their_probes() {
    static ANNOUNCED: AtomicU64 = AtomicU64::new(0);
    fastinst::register_callback(|probe| {
        assert_eq!(probe.provider, c"jit");
        ANNOUNCED.fetch_add(1, Ordering::Relaxed);
    })
    .expect("not in a callback");
    let mut group = load(0);
    let mut probes = group.range().len() as u64;
    let mut held = (usize::MAX, usize::MAX);
    let begin = Barrier::new(TOGGLERS + 1);
    std::thread::scope(|scope| {
        let togglers: Vec<_> = (0..TOGGLERS).map(|_| scope.spawn(|| toggle(&begin))).collect();
        begin.wait();
        for number in 1..=MODULES {
            let old = group.range();
            drop(group);
            for id in [old.start, old.end - 1].map(ProbeId) {
                // SAFETY: `count` may be called at any time.
                assert!(is_retired(id, unsafe { fastinst::activate(id, COUNT) }));
                assert!(is_retired(id, fastinst::deactivate(id)));
                assert!(is_retired(id, fastinst::with_metadata(id, |_| ())));
            }
            // Each thread is in at most one call.
            assert!(ALIVE.load(Ordering::Relaxed) <= TOGGLERS);
            group = load(number);
            assert!(group.range().start >= old.end, "no id is reused");
            probes += group.range().len() as u64;
            if number == WARMED_UP {
                held = (ALLOCATED.load(Ordering::Relaxed), mappings());
            }
        }
        IS_LAST.store(true, Ordering::Relaxed);
        for toggler in togglers {
            let answers = toggler.join().expect("no call had another result");
            assert!(answers.done >= 1_000, "{answers:?}");
            println!("{answers:?}");
        }
        // A module that was in use when its group was dropped is freed when the next group is made.
        drop(ReservedIds::new(1).expect("there are ids"));
        assert_eq!(ALIVE.load(Ordering::Relaxed), 1);
        let now = (ALLOCATED.load(Ordering::Relaxed), mappings());
        println!("held after {WARMED_UP} and {MODULES} modules, in bytes and mappings: {held:?} {now:?}");
        assert!(now.0 <= held.0 + TOLERANCE && now.1 <= held.1 + 10, "{held:?} {now:?}");
        drop(group);
    });
    assert_eq!(ALIVE.load(Ordering::Relaxed), 0);
    assert_eq!(ANNOUNCED.load(Ordering::Relaxed), probes, "each probe was announced once");
}
