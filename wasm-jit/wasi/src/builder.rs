//! Says what a program shall see of the host.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use super::context::{Descriptor, Directory, Table, WasiCtx};
use super::stream::{Input, Output};

/// Makes a [`WasiCtx`]. Without further calls the program has no arguments (not even its name), no
/// environment, an empty input, outputs that go nowhere, and no directory.
///
/// ```
/// use wasm_jit_wasi::{OutputPipe, WasiCtxBuilder};
///
/// let stdout = OutputPipe::new();
/// let mut builder = WasiCtxBuilder::new();
/// builder.arg("echo").arg("hello").env("LANG", "C").stdin(&b"a line\n"[..]).stdout(stdout.clone());
/// let wasi = builder.preopened_dir(std::env::temp_dir(), "/tmp")?.build();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct WasiCtxBuilder {
    args: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    stdin: Input,
    stdout: Output,
    stderr: Output,
    preopens: Vec<Arc<Directory>>,
}

impl Default for WasiCtxBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl WasiCtxBuilder {
    /// See the type.
    pub fn new() -> Self {
        Self {
            args: Vec::new(),
            env: Vec::new(),
            stdin: Input::reader(io::empty()),
            stdout: Output::writer(io::sink()),
            stderr: Output::writer(io::sink()),
            preopens: Vec::new(),
        }
    }

    /// Adds an argument; the first is the program's name. A program sees it end at its first NUL
    /// byte.
    pub fn arg(&mut self, arg: impl Into<Vec<u8>>) -> &mut Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<Vec<u8>>>(&mut self, args: impl IntoIterator<Item = A>) -> &mut Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds a variable to the environment.
    pub fn env(&mut self, name: impl Into<Vec<u8>>, value: impl AsRef<[u8]>) -> &mut Self {
        let mut variable = name.into();
        variable.push(b'=');
        variable.extend_from_slice(value.as_ref());
        self.env.push(variable);
        self
    }

    /// Standard input, output and error are this process's.
    pub fn inherit_stdio(&mut self) -> &mut Self {
        self.inherit_stdin().inherit_stdout().inherit_stderr()
    }

    /// Standard input is this process's. What [`std::io::Stdin`] has buffered is not seen.
    pub fn inherit_stdin(&mut self) -> &mut Self {
        self.stdin = Input::Host;
        self
    }

    /// Standard output is this process's.
    pub fn inherit_stdout(&mut self) -> &mut Self {
        self.stdout = Output::of_host(rustix::stdio::stdout());
        self
    }

    /// Standard error is this process's.
    pub fn inherit_stderr(&mut self) -> &mut Self {
        self.stderr = Output::of_host(rustix::stdio::stderr());
        self
    }

    /// Standard input comes from a reader.
    pub fn stdin(&mut self, reader: impl Read + Send + 'static) -> &mut Self {
        self.stdin = Input::reader(reader);
        self
    }

    /// Standard output goes to a writer, for example an [`OutputPipe`](super::OutputPipe).
    pub fn stdout(&mut self, writer: impl Write + Send + 'static) -> &mut Self {
        self.stdout = Output::writer(writer);
        self
    }

    /// Standard error goes to a writer.
    pub fn stderr(&mut self, writer: impl Write + Send + 'static) -> &mut Self {
        self.stderr = Output::writer(writer);
        self
    }

    /// Opens a directory of the host, which the program sees as `guest`: it may do there what this
    /// process may, and reaches nothing outside of it.
    ///
    /// # Errors
    /// It cannot be opened, or it is no directory.
    pub fn preopened_dir(
        &mut self,
        host: impl AsRef<Path>,
        guest: impl Into<String>,
    ) -> io::Result<&mut Self> {
        // Opened for reading, not with O_PATH: entries are read, and times and contents
        // synchronized, through it.
        let dir = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(host)?;
        let dir = Directory::new(cap_std::fs::Dir::from_std_file(dir), Some(guest.into()));
        self.preopens.push(Arc::new(dir));
        Ok(self)
    }

    /// The context; the builder is as new afterwards.
    pub fn build(&mut self) -> WasiCtx {
        let Self { args, env, stdin, stdout, stderr, preopens } = std::mem::take(self);
        let streams = [Descriptor::Input(stdin), Descriptor::Output(stdout), Descriptor::Output(stderr)];
        let mut table = Table::default();
        for descriptor in streams.into_iter().chain(preopens.into_iter().map(Descriptor::Dir)) {
            table.insert(descriptor).expect("fewer than 2^32 directories");
        }
        WasiCtx::new(args, env, table)
    }
}
