//! The name of a report file: expansion of `%p`, `%e`, `%h` and `%%`.

use nix::sys::utsname;

use super::Identity;
use crate::error::Error;

/// Checks a name before the run, so that an error in it does not lose the report.
///
/// # Errors
/// [`Error::TemplateSequence`] with the unknown sequence.
pub fn check_template(template: &str) -> Result<(), Error> {
    expand_with(template, |key| "peh".contains(key).then(String::new)).map(drop)
}

/// Expands the sequences in a name: `%p` to the process id, `%e` to the base name of the
/// executable, `%h` to the host name, `%%` to a percent sign. A slash in a value becomes `_`.
///
/// # Errors
/// As [`check_template`].
pub fn expand(template: &str, identity: &Identity) -> Result<String, Error> {
    expand_with(template, |key| {
        let value = match key {
            'p' => identity.pid.to_string(),
            'e' => identity.executable.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            'h' => host_name(),
            _ => return None,
        };
        Some(value.replace('/', "_"))
    })
}

/// Whether the name is different for every process of a host.
pub(super) fn names_the_process(template: &str) -> bool {
    let mut found = false;
    let expanded = expand_with(template, |key| {
        found |= key == 'p';
        Some(String::new())
    });
    expanded.is_ok() && found
}

fn expand_with(template: &str, mut value: impl FnMut(char) -> Option<String>) -> Result<String, Error> {
    let mut name = String::new();
    let mut characters = template.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            name.push(character);
            continue;
        }
        let key = characters.next();
        match key {
            Some('%') => name.push('%'),
            Some(key) if let Some(value) = value(key) => name.push_str(&value),
            _ => {
                let sequence = key.map_or("%".to_owned(), |key| format!("%{key}"));
                return Err(Error::TemplateSequence { template: template.to_owned(), sequence });
            }
        }
    }
    Ok(name)
}

fn host_name() -> String {
    utsname::uname().map_or("localhost".to_owned(), |system| system.nodename().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::SystemTime;

    use super::*;
    use crate::options::RunId;

    #[test]
    fn sequences_are_replaced() {
        let identity = Identity {
            pid: 42,
            executable: PathBuf::from("/opt/bin/app.real"),
            run: RunId { started: SystemTime::UNIX_EPOCH, pid: 42 },
            is_fork_child: false,
        };
        let host = host_name();
        assert!(!host.is_empty() && !host.contains('/'));
        let check = |template: &str, expected: &str| {
            check_template(template).unwrap();
            assert_eq!(expand(template, &identity).unwrap(), expected);
        };
        check("a.txt", "a.txt");
        check("%e.%p.json", "app.real.42.json");
        check("/run/%h/%p%p.txt", &format!("/run/{host}/4242.txt"));
        check("100%%.txt", "100%.txt");
        check("%%p.txt", "%p.txt");
        check("é%p.txt", "é42.txt");
    }

    #[test]
    fn other_sequences_are_refused() {
        #[track_caller]
        fn check(template: &str, sequence: &str) {
            let expected = format!(
                "output={template}: `{sequence}` is not a valid sequence; use %p (pid), %e (executable), %h (host) or %%"
            );
            assert_eq!(check_template(template).unwrap_err().to_string(), expected);
        }
        check("%t.txt", "%t");
        check("%P.txt", "%P");
        check("a.%", "%");
        check("%%%.txt", "%.");
        check("%é.txt", "%é");
    }

    #[test]
    fn only_a_pid_names_the_process() {
        assert!(names_the_process("%e.%p.txt"));
        assert!(!names_the_process("%e.%h.txt"));
        assert!(!names_the_process("%%p.txt"));
    }
}
