//! Calls of the library, as the actions that a patcher makes one at a time.
//!
//! The steps of a patch are those of the real [`Protocol`]. What its driver does around them (`way.rs`) is
//! followed here by hand: compare the old bytes; own the site if the protocol needs it, compare again, and lock it in the table if
//! INT3 will stand there; the steps; give the site back. A comparison sees all bytes at once; the crate reads them one by one.

use wordpatch::protocol::{Protocol, Step};
use wordpatch::{Bytes, FetchWindow};

/// What a patcher does in one go.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Goes on if these bytes stand at the address, else gives up.
    Check(usize, Bytes),
    /// Takes the site with this number, or gives up.
    Take(usize),
    /// Says in the table that threads which meet INT3 at this site go on in the job's copy.
    Lock(usize),
    /// A step of the protocol for the instruction at the address.
    Do(usize, Step),
    /// Gives the site back.
    Release(usize),
}

/// One call of the library.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Site number, and its bytes before and after if the call succeeds.
    pub(crate) changes: Vec<(usize, Bytes, Bytes)>,
    pub(crate) actions: Vec<Action>,
    /// What trapped threads execute while it has locked its site, if it makes an out-of-line copy.
    pub(crate) copy: Option<Bytes>,
}

impl Job {
    /// `wordpatch::patch` (`batch.rs`) of site `number` at `address`, with the steps of the real protocol.
    pub(crate) fn patch(
        assumed: FetchWindow,
        number: usize,
        address: usize,
        old: &Bytes,
        new: &Bytes,
    ) -> Self {
        let protocol = Protocol::new(assumed, address, old, new);
        let mut actions = vec![Action::Check(address, *old)];
        if protocol.needs_site() {
            actions.extend([Action::Take(number), Action::Check(address, *old)]);
        }
        if protocol.uses_int3() {
            actions.push(Action::Lock(number));
        }
        actions.extend(protocol.steps().iter().map(|step| Action::Do(address, *step)));
        if protocol.needs_site() {
            actions.push(Action::Release(number));
        }
        let copy = protocol.uses_int3().then_some(*old);
        Self { changes: vec![(number, *old, *new)], actions, copy }
    }

    /// A patch that names the first `named` bytes of the instruction, by a driver that takes the protocol's split of these bytes
    /// instead of the whole instruction's.
    pub(crate) fn patch_split_by_named(
        assumed: FetchWindow,
        number: usize,
        address: usize,
        named: usize,
        (old, new): (&Bytes, &Bytes),
    ) -> Self {
        assert_eq!(old[named..], new[named..]);
        let part = |whole: &Bytes| Bytes::new(&whole[..named]).expect("1 to 8 bytes");
        let patch = Self::patch(assumed, number, address, &part(old), &part(new));
        Self { changes: vec![(number, *old, *new)], ..patch }
    }

    /// `wordpatch::serialize_all_cores`, or a wait of T_max.
    pub(crate) fn wait() -> Self {
        Self { changes: Vec::new(), actions: vec![Action::Do(0, Step::Wait)], copy: None }
    }

    /// The same without its wait number `which`, counted from 0.
    pub(crate) fn without_wait(mut self, which: usize) -> Self {
        let is_wait = |(_, action): &(usize, &Action)| matches!(action, Action::Do(_, Step::Wait));
        let place =
            self.actions.iter().enumerate().filter(is_wait).nth(which).expect("there is such a wait").0;
        self.actions.remove(place);
        self
    }

    /// The same when the first wait is refused: the lock is taken back, and the call fails having changed nothing.
    pub(crate) fn refused_at_the_first_wait(mut self) -> Self {
        let is_store = |action: &&Action| matches!(action, Action::Do(_, Step::Store { .. }));
        let Some(Action::Do(address, Step::Store { offset, old, new })) =
            self.actions.iter().find(is_store).cloned()
        else {
            panic!("the lock is a store");
        };
        let wait = self.actions.iter().position(|action| matches!(action, Action::Do(_, Step::Wait)));
        self.actions.truncate(wait.expect("a wait"));
        self.actions.push(Action::Do(address, Step::Store { offset, old: new, new: old }));
        self.actions.extend(self.changes.drain(..).map(|(site, ..)| Action::Release(site)));
        self
    }

    /// The same without owning the site.
    pub(crate) fn without_owning(mut self) -> Self {
        self.actions
            .retain(|action| !matches!(action, Action::Take(_) | Action::Lock(_) | Action::Release(_)));
        self
    }
}

/// How bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// As the crate does: a locked compare-exchange, which drains the store buffer, reads, compares and writes at once.
    CompareExchange,
    /// A plain store of the bytes that change, through the store buffer; nothing is compared.
    Plain,
    /// Without care for the neighbours: the aligned word is loaded, and stored back with the new bytes in it.
    WholeWord,
}

/// What a patcher has to do.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) jobs: Vec<Job>,
    pub(crate) stores: Stores,
    /// Whether a wait begins only when the store buffer is empty.
    pub(crate) waits_drain: bool,
}

impl Program {
    /// These calls, the way the crate makes them.
    pub(crate) fn new(jobs: impl IntoIterator<Item = Job>) -> Self {
        Self { jobs: jobs.into_iter().collect(), stores: Stores::CompareExchange, waits_drain: true }
    }

    /// The same with other stores.
    pub(crate) fn storing(self, stores: Stores) -> Self {
        Self { stores, ..self }
    }
}
