//! The methods of toggling to compare: each has its own site, a function that executes it, and a
//! toggler.

use std::ffi::c_ulong;

use benches::compiled::{self, Library, PLAIN};
use benches::probes;
use benches::sites::{Case, Code, E8_NOP, LoopFunction, code_at};
use callpatch::{CallSite, Clobbers, Shape};
use fastinst::provider::cyg_profile;
use fastinst::{ProbeFn, ProbeId, ProbeKind, ProbeMetadata};
use wordpatch::{FetchModel, Outstanding, Split, State, WaitPolicy, serialize_all_cores};

/// Changes the state of a site: 0 is off, 1 is on.
pub(crate) trait Toggler {
    /// Starts a change to `state`. The previous one must be settled.
    fn toggle(&mut self, state: usize);

    /// Whether the last change is complete. Advances it.
    fn is_settled(&mut self) -> bool {
        true
    }
}

/// Executes a site the given number of times; returns in how many of them the site was on.
type Execute = Box<dyn Fn(u64) -> u64 + Sync>;

/// A method of toggling, with a site.
pub(crate) struct ToggleMethod {
    pub(crate) name: String,
    pub(crate) execute: Execute,
    pub(crate) toggler: Box<dyn Toggler>,
}

impl ToggleMethod {
    /// Changes the state, and waits until the change is complete.
    pub(crate) fn set(&mut self, state: usize) {
        while !self.toggler.is_settled() {}
        self.toggler.toggle(state);
        while !self.toggler.is_settled() {}
    }

    /// Asserts that every execution observes the state that was set last.
    fn checked(mut self) -> Self {
        for state in [0, 1, 0, 1, 1, 0] {
            self.set(state);
            serialize_all_cores().expect("membarrier is allowed");
            assert_eq!((self.execute)(1000), 1000 * state as u64, "{} in state {state}", self.name);
        }
        self
    }

    /// Every method that the machine supports. Waits by T_max are used only if T_max was measured.
    pub(crate) fn all() -> Vec<Self> {
        let mut methods = vec![
            Self::of_call_site(Split::Inside),
            Self::of_call_site(STRADDLING),
            Self::between_two_probe_functions(),
        ];
        let waits: &[WaitPolicy] = match FetchModel::in_force().t_max {
            Some(_) => &[WaitPolicy::Membarrier, WaitPolicy::TMax],
            None => &[WaitPolicy::Membarrier],
        };
        for wait in waits {
            methods.push(Self::of_patches(*wait));
            methods.push(Self::of_asynchronous_patches(*wait));
        }
        methods.into_iter().map(Self::checked).collect()
    }

    /// `CallSite::activate` and `deactivate`: one store.
    fn of_call_site(split: Split) -> Self {
        let function = loop_around_call(split);
        // SAFETY: a call in our own text, correct with and without it, which may change EAX; only
        // this site's toggles write it.
        let site = unsafe { CallSite::decode(function.site, Clobbers::CallerSaved) }.expect("a call site");
        let kind = if split == Split::Inside { "inside" } else { "straddling" };
        Self {
            name: format!("callpatch, {kind}, {:?}", site.strategy()),
            execute: Box::new(move |executions| function.run(executions)),
            toggler: Box::new(CallSiteToggler(site)),
        }
    }

    /// `fastinst::activate` of an active probe with another function: data only. One function
    /// counts as on, the other as off.
    fn between_two_probe_functions() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = compiled::compile(
            &folder,
            "probed.so",
            &probed_function(),
            &["-finstrument-functions", "-shared", "-fPIC"],
        );
        let library = Library::load(&path);
        cyg_profile::start().expect("the provider starts");
        let found = probes::discovered();
        let is_wanted =
            |probe: &&ProbeMetadata<'_>| probe.function_name == c"probed" && probe.kind == ProbeKind::ENTRY;
        let probe = found.iter().find(is_wanted).expect("the function has an entry").id;
        // SAFETY: the library's functions of these names have this type.
        let functions =
            ["off", "on"].map(|name| unsafe { std::mem::transmute::<usize, ProbeFn>(library.address(name)) });
        // SAFETY: as above.
        let run = unsafe {
            std::mem::transmute::<usize, extern "C" fn(c_ulong) -> c_ulong>(library.address("run"))
        };
        Self {
            name: "fastinst, another function".into(),
            execute: Box::new(move |executions| run(executions)),
            toggler: Box::new(FunctionToggler { probe, functions }),
        }
    }

    /// `wordpatch::patch`, CALL to NOP and back: INT3 and two waits.
    fn of_patches(wait: WaitPolicy) -> Self {
        let (function, patched) = straddler();
        Self {
            name: format!("wordpatch, straddling, by {wait:?}"),
            execute: Box::new(move |executions| function.run(executions)),
            toggler: Box::new(PatchToggler { patched, wait }),
        }
    }

    /// `start_patch`, and `try_finish` repeatedly.
    fn of_asynchronous_patches(wait: WaitPolicy) -> Self {
        let (function, patched) = straddler();
        Self {
            name: format!("the same, asynchronous, by {wait:?}"),
            execute: Box::new(move |executions| function.run(executions)),
            toggler: Box::new(AsynchronousToggler { patched, wait, outstanding: None }),
        }
    }
}

/// Three bytes before the boundary, two after it.
pub(crate) const STRADDLING: Split = Split::Crossing { front: 3 };

/// The site of a five-byte call with this split under the window in force.
pub(crate) fn case_of(split: Split) -> Case {
    let is_wanted = |case: &Case| case.shape == Shape::Call && case.split == split;
    Case::all(FetchModel::in_force().window).into_iter().find(is_wanted).expect("every split is there")
}

/// A loop that calls a counting function.
fn loop_around_call(split: Split) -> LoopFunction {
    let mut code = Code::near(ToggleMethod::all as *const () as usize, 2);
    let counting = code.counting();
    let function = code.loop_around(&case_of(split), Some(counting));
    code.finish();
    function
}

fn straddler() -> (LoopFunction, Patched) {
    let function = loop_around_call(STRADDLING);
    // SAFETY: just created, never unmapped, and not written yet.
    let call = unsafe { code_at(function.site) };
    (function, Patched { address: function.site, forms: [E8_NOP, call], state: 1 })
}

/// The probe is the entry of `probed`. Each thread has its own count, which is accessed without a
/// call.
fn probed_function() -> String {
    format!(
        "static __thread unsigned long seen __attribute__((tls_model(\"initial-exec\")));\n\
         static __thread unsigned long passed __attribute__((tls_model(\"initial-exec\")));\n\
         {PLAIN} void on(void) {{ seen++; }}\n\
         {PLAIN} void off(void) {{ passed++; }}\n\
         __attribute__((noinline)) static void probed(void) {{ __asm__ volatile(\"\"); }}\n\
         {PLAIN} unsigned long run(unsigned long n) {{\n\
             seen = 0;\n\
             while (n--) probed();\n\
             return seen;\n\
         }}\n"
    )
}

struct CallSiteToggler(CallSite);

impl Toggler for CallSiteToggler {
    fn toggle(&mut self, state: usize) {
        let toggled = if state == 0 { self.0.deactivate() } else { self.0.activate() };
        toggled.expect("no other thread writes the site");
    }
}

struct FunctionToggler {
    probe: ProbeId,
    functions: [ProbeFn; 2],
}

impl Toggler for FunctionToggler {
    fn toggle(&mut self, state: usize) {
        // SAFETY: the functions are never unloaded, call nothing instrumented, and may run
        // anywhere.
        unsafe { fastinst::activate(self.probe, self.functions[state]) }.expect("the probe is there");
    }
}

/// A straddling instruction, its two forms, and the current one.
struct Patched {
    address: usize,
    forms: [[u8; 5]; 2],
    state: usize,
}

impl Patched {
    /// The old and the new form, if the current one is not that of `state`.
    fn change(&mut self, state: usize) -> Option<[[u8; 5]; 2]> {
        let old = std::mem::replace(&mut self.state, state);
        (old != state).then(|| [self.forms[old], self.forms[state]])
    }
}

/// Selects how patches wait, if there is a choice.
fn wait_by(wait: WaitPolicy) {
    let model = FetchModel::in_force();
    if model.t_max.is_some() && model.wait != wait {
        // SAFETY: window and T_max are those in force.
        unsafe { FetchModel::force(model.window, model.t_max, wait) };
    }
}

struct PatchToggler {
    patched: Patched,
    wait: WaitPolicy,
}

impl Toggler for PatchToggler {
    fn toggle(&mut self, state: usize) {
        let Some([old, new]) = self.patched.change(state) else { return };
        wait_by(self.wait);
        // SAFETY: an instruction in our own text, correct with and without the call; no thread
        // blocks SIGTRAP.
        unsafe { wordpatch::patch(self.patched.address, &old, &new) }.expect("it is patched");
    }
}

struct AsynchronousToggler {
    patched: Patched,
    wait: WaitPolicy,
    outstanding: Option<Outstanding>,
}

impl Toggler for AsynchronousToggler {
    fn toggle(&mut self, state: usize) {
        let Some([old, new]) = self.patched.change(state) else { return };
        wait_by(self.wait);
        // SAFETY: as in `PatchToggler`.
        let begun = unsafe { wordpatch::start_patch(self.patched.address, &old, &new) };
        self.outstanding = Some(begun.expect("it is begun"));
    }

    fn is_settled(&mut self) -> bool {
        let Some(outstanding) = &self.outstanding else { return true };
        if outstanding.try_finish().expect("it is furthered") != State::Finished {
            return false;
        }
        self.outstanding = None;
        true
    }
}
