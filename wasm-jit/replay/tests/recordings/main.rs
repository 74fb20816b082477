//! Recordings, their replays, and what is derived from them: one subject per file.

mod common;
mod exceptions;
mod files;
mod host_values;
mod import;
mod imports;
mod javascript;
mod machine_code;
mod middle;
mod modules;
mod objects;
mod order;
mod random;
mod random_exceptions;
mod record;
mod reference_types;
mod references;
mod replay;
mod several;
mod slice;
mod snapshots;
mod stops;
mod support;
mod wide_tables;
