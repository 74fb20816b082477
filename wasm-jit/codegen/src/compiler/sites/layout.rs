//! The sites of a function: where they are laid out, and which instructions share one.
//!
//! A site is a five-byte NOP inside an aligned quadword, before its instruction. In code with sites
//! at branches (`Sites::Branches`), control instructions share the NOP before them as long as
//! control cannot reach one of them without passing it, and a jump of the program can be the site
//! itself.

use super::{MAX_SHARED, SITE_LENGTH, SITE_WINDOW, SiteKind, Sites};
use crate::asm::{Cond, Label};
use crate::compiler::function::FunctionCompiler;
use crate::compiler::observe::State;
use crate::compiler::output::Position;
use crate::compiler::state::{Flag, Operand, Val};

/// The sites that a function has, and what the next instruction may use of the last one.
#[derive(Debug)]
pub(crate) struct SiteLayout<'a> {
    /// The instructions before which there is a site.
    pub(crate) wanted: &'a Sites,
    /// The last site that control instructions may share.
    shared: Option<SharedSite>,
    /// Whether the next jump is the site of the current instruction.
    jump_is_site: bool,
}

/// A NOP that is the site of some control instructions.
#[derive(Clone, Copy, Debug)]
struct SharedSite {
    code: u32,
    instructions: u32,
}

impl<'a> SiteLayout<'a> {
    pub(crate) fn new(wanted: &'a Sites) -> Self {
        Self { wanted, shared: None, jump_is_site: false }
    }
}

impl FunctionCompiler<'_> {
    /// Lays out the site of a location (the current instruction, the entry or the exit), if it has
    /// one.
    pub(crate) fn lay_out_site(&mut self, position: u32, kind: SiteKind) {
        if let Some(observer) = self.observer.take() {
            observer.place(position, &State::at(self, kind));
            self.observer = Some(observer);
        }
        if !self.sites.wanted.contains(position, kind) {
            return;
        }
        if let Some(site) = self.share_site(kind) {
            return self.show_site(site, position, kind);
        }
        if self.sites.wanted.use_code() && self.will_jump(kind) {
            self.sites.jump_is_site = true;
            return;
        }
        let before = self.asm.offset();
        if self.sites.wanted.settles(position) && kind != SiteKind::Exit {
            self.settle();
            self.flags_hold_since(before);
        }
        self.align_site();
        let site = self.asm.offset();
        self.asm.nops(SITE_LENGTH);
        // By its stub.
        self.asm.r11_changes += 1;
        self.flags_hold_since(site);
        self.sites.shared = (self.sites.wanted.use_code() && kind.is_control())
            .then_some(SharedSite { code: site, instructions: 1 });
        self.show_site(site, position, kind);
    }

    /// The site immediately before this point, if the current instruction can share it: control
    /// that reaches this point has passed the site exactly once.
    fn share_site(&mut self, kind: SiteKind) -> Option<u32> {
        let is_here = |site: &&mut SharedSite| site.code + SITE_LENGTH == self.asm.offset();
        let site = self.sites.shared.as_mut().filter(is_here)?;
        if !kind.is_control() || self.asm.is_bound_here() || site.instructions == MAX_SHARED {
            return None;
        }
        let is_pending = |operand: &Operand| matches!(operand.val, Val::Load(_));
        debug_assert!(!self.stack.iter().any(is_pending), "no load is pending before a control instruction");
        site.instructions += 1;
        Some(site.code)
    }

    /// Whether the current instruction branches by one jump.
    fn will_jump(&self, kind: SiteKind) -> bool {
        match (kind, self.stack.last().map(|operand| operand.val)) {
            (SiteKind::Jump, _) => true,
            (SiteKind::JumpIf, Some(Val::Const(_) | Val::Flag(Flag::FloatEqual | Flag::FloatNotEqual))) => {
                false
            }
            (kind, _) => kind == SiteKind::JumpIf,
        }
    }

    /// Aligns the next instruction so that five bytes are inside an aligned quadword: by
    /// lengthening the last instruction if code of the program is used as sites, else by a NOP.
    fn align_site(&mut self) {
        let before = self.asm.offset();
        let over = before % SITE_WINDOW;
        if over + SITE_LENGTH <= SITE_WINDOW {
            return;
        }
        let by = SITE_WINDOW - over;
        let is_longer = self.sites.wanted.use_code() && self.asm.lengthen_last(by);
        if !is_longer {
            self.asm.nops(by);
        }
        self.flags_hold_since(before);
        let now = self.asm.offset();
        if is_longer && let Some(observer) = &mut self.observer {
            observer.moved(before, now);
        }
    }

    /// JMP or Jcc, which may be the site of the current instruction. It is aligned by prefixes of
    /// the preceding instruction, so that the processor can fuse the two.
    pub(crate) fn jump(&mut self, cond: Option<Cond>, label: Label) {
        if !std::mem::take(&mut self.sites.jump_is_site) {
            return match cond {
                Some(cond) => self.asm.jcc(cond, label),
                None => self.asm.jmp(label),
            };
        }
        self.align_site();
        let site = self.asm.offset();
        match cond {
            Some(cond) => self.asm.long_jcc(cond, label),
            None => self.asm.long_jmp(label),
        }
        if let Some(observer) = self.observer.take() {
            observer.site(Position { code: site, wasm: self.instruction.position }, &State::at_jump(self));
            self.observer = Some(observer);
        }
    }

    /// Records that the code since an offset preserves the flags: what the compiler knew about them
    /// there still holds.
    pub(crate) fn flags_hold_since(&mut self, before: u32) {
        if let Some(flag) = &mut self.zero_flag
            && flag.at == before
        {
            flag.at = self.asm.offset();
        }
    }
}
