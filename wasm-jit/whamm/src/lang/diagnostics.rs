//! The problems of a script: their positions, and how they are displayed.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

/// A range of byte offsets in a script.
pub type Span = Range<usize>;

/// The maximum number of reported problems of one script.
const MAX_PROBLEMS: usize = 20;

/// The kind of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The text is not a script.
    Syntax,
    /// A name is unknown, or defined twice.
    Name,
    /// Types do not match.
    Type,
    /// A match rule matches nothing that can be observed, or is malformed.
    Rule,
    /// Valid, but not supported by this compiler or by the interface of monitor modules.
    Unsupported,
    /// A limit of the compiler is exceeded.
    Limit,
}

/// A problem at a position in a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The kind of the problem.
    pub kind: ProblemKind,
    /// The message, without its position and help.
    pub message: String,
    /// The position of the problem in the script, in bytes.
    pub span: Span,
    /// A proposed solution, if there is one.
    pub help: Option<String>,
}

impl Problem {
    pub(super) fn new(kind: ProblemKind, span: Span, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), span, help: None }
    }

    pub(super) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// The problems of a script that cannot be compiled, in the order of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    name: String,
    source: String,
    problems: Vec<Problem>,
}

impl ScriptError {
    pub(super) fn new(name: &str, source: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.span.start);
        problems.dedup();
        problems.truncate(MAX_PROBLEMS);
        Self { name: name.to_owned(), source: source.to_owned(), problems }
    }

    /// The problems: at least one, and at most 20.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ScriptError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let renderer = Renderer::plain();
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                out.write_str("\n\n")?;
            }
            // Rounded down to a character boundary, and clamped to the end of the text.
            let floor = |at: usize| self.source.floor_char_boundary(at.min(self.source.len()));
            let start = floor(problem.span.start);
            let end = self.source.ceil_char_boundary(problem.span.end.min(self.source.len())).max(start);
            let snippet = Snippet::source(&self.source)
                .path(&self.name)
                .annotation(AnnotationKind::Primary.span(start..end));
            let mut group: Group<'_> = Level::ERROR.primary_title(&problem.message).element(snippet);
            if let Some(help) = &problem.help {
                group = group.element(Level::HELP.message(help.as_str()));
            }
            out.write_str(&renderer.render(&[group]))?;
        }
        Ok(())
    }
}

impl std::error::Error for ScriptError {}
