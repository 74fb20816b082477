//! The programs, and how they are run.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use benches::child::{self, Run};
use benches::host;
use benches::options::Options;

/// A real program with a workload.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its name in the scripts.
    pub(crate) name: &'static str,
    /// A description.
    pub(crate) what: &'static str,
    script: &'static str,
    /// Whether calls that the compiler has inlined are not instrumented: the oracle does not see
    /// them, stack samples do.
    hides_inlined: bool,
    arguments: Vec<String>,
    /// Requests of each client, for a server.
    load: Option<String>,
}

/// All programs: six of `scripts/truth-programs.sh`, four of `scripts/third-party.sh`.
pub(crate) fn all(options: &Options) -> Vec<Program> {
    const OWN: &str = "scripts/truth-programs.sh";
    const OLD: &str = "scripts/third-party.sh";
    let size = |full: &str, quick: &str| options.either(full, quick).to_string();
    let path = |name: &str| host::repo_root().join("tests/programs").join(name).display().to_string();
    let shaders = host::target_dir().join("truth-programs/glslang.shaders").display().to_string();
    let program = |script, name, what, arguments| Program {
        name,
        what,
        script,
        hides_inlined: name == "luau",
        arguments,
        load: None,
    };
    let lua = path("small_functions.lua");
    vec![
        program(OWN, "quickjs", "C, interpreter", vec![path("truth/quickjs_workload.js"), size("7", "1")]),
        program(OWN, "luau", "C++ by clang, interpreter", vec![lua.clone(), size("8", "1"), size("16", "8")]),
        program(OWN, "zstd", "C, compressor, 4 threads", vec![size("8", "1"), "4".into()]),
        program(OWN, "openh264", "C++, codec, 2 threads", vec![size("200", "15"), "2".into()]),
        program(OWN, "glslang", "C++, compiler", vec![shaders, size("4", "16"), "1".into()]),
        Program {
            load: Some(size("100000", "3000")),
            ..program(OWN, "nginx", "C, server under load", vec![])
        },
        program(OLD, "sqlite", "C, data base", vec![size("300000", "10000")]),
        program(OLD, "lua", "C, interpreter", vec![lua, size("40", "4")]),
        program(OLD, "bzip2", "C, compressor, 4 threads", vec![size("80", "4"), "4".into()]),
        program(OLD, "jsonnet", "C++, exceptions", vec![size("3", "1")]),
    ]
}

/// A program that was built.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    program: Program,
    /// With instrumentation.
    pub(crate) binary: PathBuf,
    /// Without instrumentation; not available for all programs.
    pub(crate) plain: Option<PathBuf>,
}

/// Processes that use as much processor time as they get, until they are dropped.
#[derive(Debug)]
pub(crate) struct Competitors(Vec<Child>);

impl Competitors {
    /// One for each processor.
    pub(crate) fn start() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let spin =
            |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh can be started");
        Self((0..processors).map(spin).collect())
    }
}

impl Drop for Competitors {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A process that has ended by itself is waited for as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Program {
    /// Builds the program.
    ///
    /// # Panics
    /// If the build fails; its messages are on standard error.
    pub(crate) fn build(&self) -> Built {
        let mut command = Command::new(host::repo_root().join(self.script));
        let output = command
            .arg(self.name)
            .env("CARGO_TARGET_DIR", host::target_dir())
            .stderr(Stdio::inherit())
            .output();
        let output = output.expect("the script can be started");
        assert!(output.status.success(), "{command:?}: {}", output.status);
        let binary = PathBuf::from(String::from_utf8(output.stdout).expect("a UTF-8 path").trim_end());
        let plain = PathBuf::from(format!("{}.plain", binary.display()));
        Built { program: self.clone(), plain: plain.exists().then_some(plain), binary }
    }
}

impl Built {
    /// Whether the oracle does not see calls that the compiler has inlined.
    pub(crate) fn hides_inlined(&self) -> bool {
        self.program.hides_inlined
    }

    /// Runs `binary` to its end, started by `prefix` and with these environment variables. The code
    /// has the same addresses in every run.
    ///
    /// # Panics
    /// If it fails.
    pub(crate) fn run(&self, binary: &Path, prefix: &[&str], variables: &[(&str, &str)]) -> Run {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let words: Vec<&str> =
            prefix.iter().copied().chain([binary.to_str().expect("a UTF-8 path")]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(&self.program.arguments);
        command.env_remove("LD_PRELOAD").env_remove("FASTINST_OPTIONS").envs(variables.iter().copied());
        let fixed_addresses = || {
            // SAFETY: a system call that accesses no memory.
            match unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) } {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            }
        };
        // SAFETY: the closure makes one system call.
        unsafe { command.pre_exec(fixed_addresses) };
        let client = self.program.load.as_ref().map(|requests| {
            prepare_server(folder.path());
            command.arg("-p").arg(folder.path()).arg("-c").arg(folder.path().join("nginx.conf"));
            command.arg("-e").arg(folder.path().join("error.log"));
            let mut client = Command::new(self.binary.with_file_name("nginx_load"));
            client.arg(folder.path()).args(["4", requests]).stdin(Stdio::null()).stdout(Stdio::piped());
            client.spawn().expect("the client can be started")
        });
        let mut run = child::run(command);
        if let Some(client) = client {
            let output = client.wait_with_output().expect("the client can be waited for");
            assert!(output.status.success(), "{}: the client: {}", self.program.name, output.status);
            run.output.extend(output.stdout);
        }
        assert!(run.status.success(), "{}: {}", self.program.name, run.status);
        run
    }
}

fn prepare_server(folder: &Path) {
    let write =
        |name: &str, text: &str| fs::write(folder.join(name), text).expect("a temporary file can be written");
    let configuration = format!(
        "daemon off; master_process off; pid nginx.pid; error_log error.log;\n\
         events {{ worker_connections 64; }}\n\
         http {{\n\
         access_log access.log; keepalive_requests 1000000; client_body_temp_path body; proxy_temp_path proxy;\n\
         fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
         server {{ listen unix:{0}/socket; root {0}; location / {{ add_header X-Served \"$request_uri $pid\"; }} }}\n\
         }}\n",
        folder.display()
    );
    write("nginx.conf", &configuration);
    for number in 0..10_usize {
        write(&number.to_string(), &format!("file {number} <b>of many</b> words\n").repeat(1 + 40 * number));
    }
}
