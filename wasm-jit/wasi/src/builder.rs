//! Configures the program's view of the host.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use super::context::{Descriptor, Directory, Table, WasiCtx};
use super::stream::{Input, Output};

/// Builds a [`WasiCtx`]. By default the program has no arguments (not even its name), no
/// environment, empty input, discarded output, and no directories.
///
/// ```
/// use wasm_jit_wasi::{OutputPipe, WasiCtxBuilder};
///
/// let stdout = OutputPipe::new(1 << 20);
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
    max_descriptors: u32,
}

/// The default of [`WasiCtxBuilder::max_descriptors`]: as many as a process has by default, which
/// needs some of its own.
const MAX_DESCRIPTORS: u32 = 1000;

impl Default for WasiCtxBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl WasiCtxBuilder {
    /// A builder with the defaults: no arguments, no environment, empty input, discarded output,
    /// and no directories.
    pub fn new() -> Self {
        Self {
            args: Vec::new(),
            env: Vec::new(),
            stdin: Input::reader(io::empty()),
            stdout: Output::writer(io::sink()),
            stderr: Output::writer(io::sink()),
            preopens: Vec::new(),
            max_descriptors: MAX_DESCRIPTORS,
        }
    }

    /// Adds an argument; the first is the program's name. To the program, an argument ends at its
    /// first NUL byte.
    pub fn arg(&mut self, arg: impl Into<Vec<u8>>) -> &mut Self {
        self.args.push(arg.into());
        self
    }

    /// Adds several arguments, as [`arg`](Self::arg) does.
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

    /// Uses this process's standard input, output and error.
    pub fn inherit_stdio(&mut self) -> &mut Self {
        self.inherit_stdin().inherit_stdout().inherit_stderr()
    }

    /// Uses this process's standard input. Data buffered by [`std::io::Stdin`] is not seen.
    pub fn inherit_stdin(&mut self) -> &mut Self {
        self.stdin = Input::Host;
        self
    }

    /// Uses this process's standard output.
    pub fn inherit_stdout(&mut self) -> &mut Self {
        self.stdout = Output::of_host(rustix::stdio::stdout());
        self
    }

    /// Uses this process's standard error.
    pub fn inherit_stderr(&mut self) -> &mut Self {
        self.stderr = Output::of_host(rustix::stdio::stderr());
        self
    }

    /// Reads standard input from a reader.
    pub fn stdin(&mut self, reader: impl Read + Send + 'static) -> &mut Self {
        self.stdin = Input::reader(reader);
        self
    }

    /// Writes standard output to a writer, for example an [`OutputPipe`](super::OutputPipe).
    pub fn stdout(&mut self, writer: impl Write + Send + 'static) -> &mut Self {
        self.stdout = Output::writer(writer);
        self
    }

    /// Writes standard error to a writer.
    pub fn stderr(&mut self, writer: impl Write + Send + 'static) -> &mut Self {
        self.stderr = Output::writer(writer);
        self
    }

    /// Opens a directory of the host under the name `guest`. The program has the same rights in it
    /// as this process, and cannot access anything outside it. If `/proc` is inside of it, the
    /// program can read and write this process's memory there.
    ///
    /// # Errors
    /// The directory cannot be opened, or is not a directory.
    pub fn preopened_dir(
        &mut self,
        host: impl AsRef<Path>,
        guest: impl Into<String>,
    ) -> io::Result<&mut Self> {
        // Opened for reading, not with O_PATH: it is used to read entries, and to synchronize times
        // and contents.
        let dir = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(host)?;
        let dir = Directory::new(cap_std::fs::Dir::from_std_file(dir), Some(guest.into()));
        self.preopens.push(Arc::new(dir));
        Ok(self)
    }

    /// Limits the number of descriptors that the program has at any time, those of its streams and
    /// directories included (default: 1000). They are descriptors of this process, whose own limit
    /// (`RLIMIT_NOFILE`) applies as well.
    pub fn max_descriptors(&mut self, most: u32) -> &mut Self {
        self.max_descriptors = most;
        self
    }

    /// Builds the context, and resets the builder to the defaults.
    pub fn build(&mut self) -> WasiCtx {
        let Self { args, env, stdin, stdout, stderr, preopens, max_descriptors } = std::mem::take(self);
        let streams = [Descriptor::Input(stdin), Descriptor::Output(stdout), Descriptor::Output(stderr)];
        let preopens = preopens.into_iter().map(Descriptor::Dir);
        // The program gets these in any case.
        let most = max_descriptors.max(streams.len() as u32 + preopens.len() as u32);
        let mut table = Table::new(most);
        for descriptor in streams.into_iter().chain(preopens) {
            table.insert(descriptor).expect("there is room for these");
        }
        WasiCtx::new(args, env, table)
    }
}
