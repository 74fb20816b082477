//! Errors of options, reports, and starting a program.
//!
//! Every message is one line that names the problem and the remedy. Nothing here prints; the
//! command and the preloaded library prefix the line with their name and choose the exit code.

use std::io;
use std::path::PathBuf;

/// The reason why options, a report or a program cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // The session.
    /// The profiler could not be started; the program continues without it.
    #[error("cannot profile: {source}; the program runs on unprofiled")]
    Start {
        /// The error of the probe library.
        source: fastinst::Error,
    },

    /// The program has its own instrumentation functions.
    #[error(
        "the program defines __cyg_profile_func_enter or ..._exit itself, and keeps them; it runs on unprofiled"
    )]
    OwnInstrumentation,

    /// No session was started in this process.
    #[error("the profiler does not run in this process; start the program with fastinst record")]
    NotRunning,

    /// The process already has a profiler.
    #[error("a profiler runs in this process already; end that one first")]
    IsRunning,

    /// The service thread did not apply new settings in time.
    #[error(
        "new settings were not applied within {seconds} s; they will be when the profiler's thread runs again"
    )]
    NotReconfigured {
        /// The waiting time, in seconds.
        seconds: u64,
    },

    // Scripts that are attached.
    /// No script can be attached to this process.
    #[error("no scripts can be attached: {}: {source}; the program runs on", path.display())]
    Listen {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// No process has this id.
    #[error("there is no process {process}")]
    NoProcess {
        /// The process id.
        process: u32,
    },

    /// The process does not permit scripts to be attached.
    #[error(
        "process {process} does not listen; start it with fastinst run --control, or with FASTINST_SCRIPT=control=1 \
         and LD_PRELOAD=libfastinst_script.so"
    )]
    NotListening {
        /// The process id.
        process: u32,
    },

    /// The process cannot be reached.
    #[error("process {process}: {source}; scripts are attached by the user of the process, or by root")]
    Connect {
        /// The process id.
        process: u32,
        /// The error of the connection.
        source: io::Error,
    },

    // Options.
    /// An unknown key.
    #[error("unknown option `{key}`; the options are {allowed}")]
    UnknownKey {
        /// The key as it was written.
        key: String,
        /// The valid keys.
        allowed: String,
    },

    /// An item without `=`.
    #[error("option `{item}` has no value; write key=value, and a colon in a value as `\\:`")]
    NoValue {
        /// The item as it was written.
        item: String,
    },

    /// Merged reports must be readable by every process.
    #[error("merge=1 needs a report that can be read again: name it with output=FILE.json")]
    MergeWithoutData,

    /// A report that was merged cannot be replaced by a newer one of the same process.
    #[error("snapshot= and merge=1 exclude each other: each process needs a report of its own")]
    MergeOfSnapshots,

    /// An invalid value of a key.
    #[error("{key}={value}: expected {allowed}")]
    BadValue {
        /// The option.
        key: &'static str,
        /// The value as it was written.
        value: String,
        /// The valid values.
        allowed: String,
    },

    /// The environment variable contains invalid options.
    #[error("FASTINST_OPTIONS: {source}")]
    OptionsVariable {
        /// The problem with the options.
        source: Box<Error>,
    },

    /// The environment variable is not valid UTF-8.
    #[error("FASTINST_OPTIONS: the value is not UTF-8; set key=value:key=value or unset it")]
    OptionsNotUtf8,

    /// A key occurs twice.
    #[error("option `{key}` is given twice; leave one")]
    DuplicateKey {
        /// The option.
        key: String,
    },

    /// A backslash before a character that needs none.
    #[error("option text `{text}`: a backslash may only precede `:` or `\\`; write `\\\\` for a backslash")]
    Escape {
        /// The entire option string.
        text: String,
    },

    /// An unknown `%` sequence in an output name.
    #[error(
        "output={template}: `{sequence}` is not a valid sequence; use %p (pid), %e (executable), %h (host) or %%"
    )]
    TemplateSequence {
        /// The output name as it was written.
        template: String,
        /// The unknown sequence.
        sequence: String,
    },

    /// A relative output name cannot be made absolute, because options are UTF-8 and the
    /// directory's name is not.
    #[error("the directory {} has a name that is not UTF-8; give output an absolute path", directory.display())]
    DirectoryName {
        /// The working directory.
        directory: PathBuf,
    },

    /// The working directory is gone or not accessible, so a relative name has no meaning.
    #[error("cannot determine the working directory ({source}); give output an absolute path")]
    WorkingDirectory {
        /// The system's error.
        source: io::Error,
    },

    /// The directory of the report does not exist when the program is started.
    #[error("the directory {} of the report does not exist; create it first", directory.display())]
    OutputDirectory {
        /// The missing directory.
        directory: PathBuf,
    },

    // Reports.
    /// The report file cannot be read.
    #[error("cannot read the report {}: {source}", path.display())]
    ReadReport {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// The file ends in the middle of a report.
    #[error("{} is truncated: it ends at line {line}, in the middle of a report; copy or record it again", path.display())]
    TruncatedReport {
        /// The path of the file.
        path: PathBuf,
        /// The number of the file's last line.
        line: usize,
    },

    /// The report has a version that this program cannot read.
    #[error("{} is a report of version {found}, this fastinst reads versions 2 to {supported}; use the fastinst that recorded it", path.display())]
    ReportVersion {
        /// The path of the file.
        path: PathBuf,
        /// The version of the report.
        found: String,
        /// The newest supported version.
        supported: u32,
    },

    /// The file is not a report.
    #[error("{} is not a fastinst report ({found}); give a .json file that fastinst wrote", path.display())]
    NotAReport {
        /// The path of the file.
        path: PathBuf,
        /// A description of the file's contents.
        found: String,
    },

    /// A report is given twice.
    #[error("{} is the report of a process whose report is already included", path.display())]
    SameReport {
        /// The second file.
        path: PathBuf,
    },

    /// Reports are of different builds.
    #[error("{} cannot be added: it is of another build of {object}, where {address:#x} is {other} instead of {function}", path.display())]
    OtherBuild {
        /// The report.
        path: PathBuf,
        /// The object that was built again.
        object: String,
        /// The address of a function in the object.
        address: u64,
        /// The name of the function in the reports before.
        function: String,
        /// The name of the function in this report.
        other: String,
    },

    /// No function of a report has this name.
    #[error("no function `{name}` is in the report{}", if similar.is_empty() { String::new() } else { format!("; there is {similar}") })]
    UnknownFunction {
        /// The name as it was written.
        name: String,
        /// Functions whose names contain it, separated by commas.
        similar: String,
    },

    /// Several functions of a report have this name.
    #[error("`{name}` is the name of several functions: {candidates}; write one of these")]
    AmbiguousFunction {
        /// The name as it was written.
        name: String,
        /// The functions, separated by commas.
        candidates: String,
    },

    /// The report cannot be written.
    #[error("cannot write the report {}: {source}; name another file with output=FILE", path.display())]
    WriteReport {
        /// The intended file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    // Launching.
    /// The program does not exist.
    #[error("{}: no such program; check the name and PATH", program.display())]
    ProgramNotFound {
        /// The program as it was written.
        program: PathBuf,
    },

    /// The program exists but cannot be executed.
    #[error("{}: {reason}; it cannot be executed", program.display())]
    ProgramNotExecutable {
        /// The path of the file that was found.
        program: PathBuf,
        /// The reason.
        reason: &'static str,
    },

    /// The program cannot be inspected.
    #[error("cannot inspect {}: {source}", path.display())]
    InspectProgram {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// The system refused to start the program.
    #[error("cannot execute {}: {source}; is its interpreter or loader there?", path.display())]
    Execute {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// A static program has no loader to preload a library.
    #[error(
        "{} is statically linked and cannot be profiled, since nothing loads libfastinst.so into it; link it without -static",
        path.display()
    )]
    StaticProgram {
        /// The path of the file.
        path: PathBuf,
    },

    /// The loader ignores LD_PRELOAD in a program that gains privileges.
    #[error(
        "{} is set-user-ID, set-group-ID or has capabilities and cannot be profiled, since the loader ignores LD_PRELOAD in it; profile a copy made with cp",
        path.display()
    )]
    PrivilegedProgram {
        /// The path of the file.
        path: PathBuf,
    },

    /// An ELF file for another processor.
    #[error(
        "{} is a {bits}-bit program for ELF machine {machine} and cannot be profiled; build it for 64-bit x86-64",
        path.display()
    )]
    ForeignProgram {
        /// The path of the file.
        path: PathBuf,
        /// The word size: 32 or 64.
        bits: u8,
        /// `e_machine` of its header: 3 is 32-bit x86, 183 is aarch64.
        machine: u16,
    },

    /// libfastinst.so is in none of the usual directories.
    #[error("libfastinst.so is not in {searched}; name it with --library")]
    LibraryNotFound {
        /// The directories, separated by commas.
        searched: String,
    },

    /// The file to preload is not a shared library for this processor.
    #[error("{} is not an x86-64 shared library; --library takes the path of libfastinst.so", path.display())]
    NotALibrary {
        /// The path of the file.
        path: PathBuf,
    },

    /// LD_PRELOAD cannot quote these characters.
    #[error(
        "{} cannot be preloaded, since the loader splits or expands names at space, `:` and `$`; use another path or a link to it",
        path.display()
    )]
    LibraryName {
        /// The path of the file.
        path: PathBuf,
    },
}
