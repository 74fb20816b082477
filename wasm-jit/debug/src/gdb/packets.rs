//! The client's packets, and the connection as the stub sees it.
//!
//! The stub ends a session at a packet that it cannot parse. A client that sends such a packet (for
//! example typed by a user) expects an error as the answer. Therefore the stub gets complete
//! packets only, and when it ends the session, a new stub takes its place. The new stub first gets
//! the packets by which the client has chosen its settings, and one that resumes the program if it
//! runs; its answers to these are dropped.
//!
//! A request to read more memory than an answer can have becomes one for as much as it can have,
//! as the protocol allows.

use std::collections::VecDeque;
use std::io;

use gdbstub::conn::{Connection, ConnectionExt};

/// The size of the stub's buffer.
const MAX_PACKET: usize = 4096;

/// The number of bytes of memory in one answer: it must fit into the client's buffer as well.
const MAX_READ: u64 = 2000;

/// The result of a byte that the client has sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Part of a packet.
    Nothing,
    /// A packet, or a byte outside of one, such as an acknowledgement.
    Complete(Vec<u8>),
    /// A packet that exceeds the size that the stub can receive.
    TooLong,
}

/// The packets of a client.
#[derive(Debug, Default)]
pub(super) struct Packets {
    partial: Vec<u8>,
    /// The end of the current packet, once it is known.
    end: Option<usize>,
    is_too_long: bool,
    supported: Option<Vec<u8>>,
    /// The client's request not to acknowledge packets.
    quiet: Option<Vec<u8>>,
}

impl Packets {
    /// Adds a received byte.
    pub(super) fn add(&mut self, byte: u8) -> Sent {
        if self.partial.is_empty() && byte != b'$' {
            return Sent::Complete(vec![byte]);
        }
        if self.partial.len() == MAX_PACKET && self.end.is_none() && byte != b'#' {
            self.is_too_long = true;
            return Sent::Nothing;
        }
        self.partial.push(byte);
        // Two digits of the checksum follow.
        if byte == b'#' && self.end.is_none() {
            self.end = Some(self.partial.len() + 2);
        }
        if self.end != Some(self.partial.len()) {
            return Sent::Nothing;
        }
        self.end = None;
        let packet = std::mem::take(&mut self.partial);
        if std::mem::take(&mut self.is_too_long) || packet.len() > MAX_PACKET {
            return Sent::TooLong;
        }
        Sent::Complete(limited(&packet).unwrap_or(packet))
    }

    /// Keeps the settings in a packet that the stub has understood.
    pub(super) fn understood(&mut self, packet: Vec<u8>) {
        if packet.starts_with(b"$qSupported") {
            self.supported = Some(packet);
        } else if packet == b"$QStartNoAckMode#b0" {
            self.quiet = Some(packet);
        }
    }

    /// The packets that a new stub gets first: the client's settings, and a request to continue if
    /// the program runs.
    pub(super) fn settings(&self, is_running: bool) -> Vec<u8> {
        let runs = is_running.then_some(&b"$vCont;c#a8"[..]);
        let settings = [self.supported.as_deref(), self.quiet.as_deref(), runs];
        settings.into_iter().flatten().flatten().copied().collect()
    }

    /// Answers a packet that the stub has not answered.
    pub(super) fn refuse(&self, connection: &mut impl Connection<Error = io::Error>) -> io::Result<()> {
        if self.quiet.is_none() {
            connection.write(b'+')?;
        }
        connection.write_all(b"$E01#a6")?;
        connection.flush()
    }
}

/// The request for fewer bytes, if the packet requests too many.
fn limited(packet: &[u8]) -> Option<Vec<u8>> {
    let (body, sum) = packet.strip_prefix(b"$m")?.split_last_chunk::<3>()?;
    let (address, length) = std::str::from_utf8(body).ok()?.split_once(',')?;
    let is_too_long = u64::from_str_radix(length, 16).ok()? > MAX_READ;
    // One with another sum is refused.
    let checksum = |text: &str| format!("#{:02x}", text.bytes().fold(0, u8::wrapping_add));
    let is_valid = checksum(&format!("m{address},{length}")).as_bytes().eq_ignore_ascii_case(sum);
    let text = format!("m{address},{MAX_READ:x}");
    (is_too_long && is_valid).then(|| format!("${text}{}", checksum(&text)).into_bytes())
}

/// A connection.
pub(super) struct Wire<'c, C> {
    pub connection: &'c mut C,
    /// What was read before.
    pub early: &'c mut VecDeque<u8>,
    /// Whether writes are discarded.
    pub is_mute: bool,
}

impl<C: Connection> Connection for Wire<'_, C> {
    type Error = C::Error;

    fn write(&mut self, byte: u8) -> Result<(), C::Error> {
        if self.is_mute { Ok(()) } else { self.connection.write(byte) }
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), C::Error> {
        if self.is_mute { Ok(()) } else { self.connection.write_all(bytes) }
    }

    fn flush(&mut self) -> Result<(), C::Error> {
        self.connection.flush()
    }

    fn on_session_start(&mut self) -> Result<(), C::Error> {
        self.connection.on_session_start()
    }
}

impl<C: ConnectionExt> ConnectionExt for Wire<'_, C> {
    fn read(&mut self) -> Result<u8, C::Error> {
        match self.early.pop_front() {
            Some(byte) => Ok(byte),
            None => self.connection.read(),
        }
    }

    fn peek(&mut self) -> Result<Option<u8>, C::Error> {
        match self.early.front() {
            Some(byte) => Ok(Some(*byte)),
            None => self.connection.peek(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_separated() {
        #[track_caller]
        fn check(sent: &[u8], expected: &[Sent], settings: &[u8]) {
            let mut packets = Packets::default();
            let found = sent.iter().map(|byte| packets.add(*byte)).filter(|sent| *sent != Sent::Nothing);
            let found: Vec<Sent> = found.collect();
            assert_eq!(found, expected);
            assert_eq!(packets.settings(false), b"", "none was understood");
            for sent in found {
                if let Sent::Complete(packet) = sent {
                    packets.understood(packet);
                }
            }
            assert_eq!(packets.settings(false), settings);
        }
        let complete = |packet: &[u8]| Sent::Complete(packet.to_vec());
        check(b"+$g#67\x03-", &[complete(b"+"), complete(b"$g#67"), complete(b"\x03"), complete(b"-")], b"");
        check(b"$a$#$#+", &[complete(b"$a$#$#"), complete(b"+")], b"");
        let [quiet, supported] = [&b"$QStartNoAckMode#b0"[..], b"$qSupported:swbreak+#e4"];
        let both = [supported, quiet].concat();
        check(&[quiet, supported].concat(), &[complete(quiet), complete(supported)], &both);
        // Reads of more memory than an answer can have.
        check(b"$m0,7d0#94", &[complete(b"$m0,7d0#94")], b"");
        check(b"$m10,7d1#c6", &[complete(b"$m10,7d0#c5")], b"");
        check(b"$m0,ffffffffffffffff#29", &[complete(b"$m0,7d0#94")], b"");
        check(b"$m0,ffff#00", &[complete(b"$m0,ffff#00")], b"");
        check(b"$m0,1ffffffffffffffff#00", &[complete(b"$m0,1ffffffffffffffff#00")], b"");
        let long = [b"$", &[b'a'; 3 * MAX_PACKET][..], b"#00", b"+"].concat();
        check(&long, &[Sent::TooLong, complete(b"+")], b"");
    }
}
