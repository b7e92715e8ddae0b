//! Reads one property of one D-Bus object over a socket.
//!
//! ```text
//! message   endian 'l' | type 1 | flags 1 | version 1 | length of body 4 | serial 4 | fields: length 4, field*
//!           | zeros to 8 | body
//! field     (at 8) code 1 | signature of value | value
//! ```
//!
//! Source: D-Bus specification, "Message Protocol" and "Authentication Protocol".
//! Invariants: one call at a time, so that the next reply belongs to it.

use std::io;
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const LITTLE_ENDIAN: u8 = b'l';
const PROTOCOL: u8 = 1;
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;
/// Maximum length of a reply, in bytes.
const MAX_BYTES: usize = 64 << 10;
const BUS: &str = "org.freedesktop.DBus";

/// Process at the other end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// The process that has the property.
    Direct,
    /// A bus, which requires a greeting and forwards calls.
    Bus,
}

/// Name of a property.
#[derive(Debug)]
pub(super) struct Property {
    pub(super) destination: &'static str,
    pub(super) path: &'static str,
    pub(super) interface: &'static str,
    pub(super) name: &'static str,
}

/// Value of a property, of the supported types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Flag(bool),
}

/// Reads a property.
///
/// # Errors
/// No such socket, a rejection, or an invalid reply.
pub(super) async fn get(socket: &Path, peer: Peer, property: &Property) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket).await?;
    let user: String = rustix::process::getuid().as_raw().to_string();
    let hex: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
    // In one write: systemd does not respond to a client that sends BEGIN separately.
    stream.write_all(format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n").as_bytes()).await?;
    let answer = line(&mut stream).await?;
    if !answer.starts_with("OK ") {
        return Err(invalid("the authentication was refused"));
    }
    if peer == Peer::Bus {
        let hello =
            Property { destination: BUS, path: "/org/freedesktop/DBus", interface: BUS, name: "Hello" };
        call(&mut stream, 1, &hello, &[]).await?;
    }
    let Property { destination, path, interface, name } = *property;
    let properties = "org.freedesktop.DBus.Properties";
    let get = Property { destination, path, interface: properties, name: "Get" };
    let body = call(&mut stream, 2, &get, &[interface, name]).await?;
    value(&body).ok_or_else(|| invalid("the property has another type"))
}

/// Reads a line of the authentication, byte by byte: the bytes after it belong to the next message.
async fn line(stream: &mut UnixStream) -> io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") && line.len() < MAX_BYTES {
        line.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Calls a method with these string arguments and returns the body of the reply.
async fn call(
    stream: &mut UnixStream,
    serial: u32,
    method: &Property,
    arguments: &[&str],
) -> io::Result<Vec<u8>> {
    stream.write_all(&message(serial, method, arguments)).await?;
    loop {
        let (kind, body) = receive(stream).await?;
        match kind {
            METHOD_RETURN => return Ok(body),
            ERROR => return Err(invalid("the call was refused")),
            // A signal.
            _ => {}
        }
    }
}

fn message(serial: u32, method: &Property, arguments: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    for argument in arguments {
        put_string(&mut body, argument);
    }
    let mut fields = Vec::new();
    for (code, kind, text) in [
        (PATH, b'o', method.path),
        (DESTINATION, b's', method.destination),
        (INTERFACE, b's', method.interface),
        (MEMBER, b's', method.name),
    ] {
        pad(&mut fields, 8);
        fields.extend([code, 1, kind, 0]);
        put_string(&mut fields, text);
    }
    if !arguments.is_empty() {
        pad(&mut fields, 8);
        fields.extend([SIGNATURE, 1, b'g', 0, small(arguments.len())]);
        fields.extend(std::iter::repeat_n(b's', arguments.len()));
        fields.push(0);
    }
    let mut message = vec![LITTLE_ENDIAN, METHOD_CALL, 0, PROTOCOL];
    for number in [length(&body), serial, length(&fields)] {
        message.extend(number.to_le_bytes());
    }
    message.extend(fields);
    pad(&mut message, 8);
    message.extend(body);
    message
}

/// Receives the next message; returns its type and body.
async fn receive(stream: &mut UnixStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 16];
    stream.read_exact(&mut head).await?;
    let number = |at: usize| -> usize {
        let bytes = head[at..at + 4].try_into().expect("a number has four bytes");
        usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX)
    };
    let (body, fields) = (number(4), number(12));
    if head[0] != LITTLE_ENDIAN || body > MAX_BYTES || fields > MAX_BYTES {
        return Err(invalid("the answer is not a message"));
    }
    let mut rest = vec![0; fields.next_multiple_of(8) + body];
    stream.read_exact(&mut rest).await?;
    Ok((head[1], rest.split_off(fields.next_multiple_of(8))))
}

/// Decodes a body that is one variant.
fn value(body: &[u8]) -> Option<Value> {
    let number = u32::from_le_bytes(body.get(4..8)?.try_into().ok()?);
    match body.get(..3)? {
        [1, b'b', 0] => Some(Value::Flag(number == 1)),
        [1, b's', 0] => {
            let text = body.get(8..8 + usize::try_from(number).ok()?)?;
            Some(Value::Text(String::from_utf8(text.to_vec()).ok()?))
        }
        _ => None,
    }
}

fn put_string(to: &mut Vec<u8>, text: &str) {
    pad(to, 4);
    to.extend(length(text.as_bytes()).to_le_bytes());
    to.extend(text.bytes());
    to.push(0);
}

fn pad(to: &mut Vec<u8>, multiple: usize) {
    to.resize(to.len().next_multiple_of(multiple), 0);
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("what is sent is short")
}

fn small(count: usize) -> u8 {
    u8::try_from(count).expect("a call has few arguments")
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::net::UnixListener;

    use super::*;

    /// Builds a reply with this value.
    pub(in crate::host) fn answer(value: &Value) -> Vec<u8> {
        let mut body = Vec::new();
        match value {
            Value::Text(text) => {
                body.extend([1, b's', 0]);
                put_string(&mut body, text);
            }
            Value::Flag(flag) => body.extend([1, b'b', 0, 0, u8::from(*flag), 0, 0, 0]),
        }
        let mut message = vec![LITTLE_ENDIAN, METHOD_RETURN, 1, PROTOCOL];
        for number in [length(&body), 1, 8] {
            message.extend(number.to_le_bytes());
        }
        // The call that it replies to.
        message.extend([5, 1, b'u', 0, 1, 0, 0, 0]);
        message.extend(body);
        message
    }

    /// Replies to the calls of one client with these messages, each after a signal.
    pub(in crate::host) fn serve(socket: &Path, answers: Vec<Vec<u8>>) {
        let listener = UnixListener::bind(socket).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), 0);
            assert!(line(&mut stream).await.unwrap().starts_with("AUTH EXTERNAL 3"));
            stream.write_all(b"OK 0123456789abcdef\r\n").await.unwrap();
            assert_eq!(line(&mut stream).await.unwrap(), "BEGIN\r\n");
            let mut signal = answer(&Value::Text("x".to_owned()));
            signal[1] = 4;
            for answer in answers {
                let (kind, _body) = receive(&mut stream).await.unwrap();
                assert_eq!(kind, METHOD_CALL);
                stream.write_all(&[&signal[..], &answer].concat()).await.unwrap();
            }
        });
    }

    #[test]
    fn a_call_is_laid_out_as_the_specification_says() {
        let method = Property { destination: "d.e", path: "/p", interface: "i.f", name: "M" };
        let sent = message(2, &method, &["ab", "c"]);
        let expected = [
            &b"l\x01\0\x01"[..],
            &[14, 0, 0, 0, 2, 0, 0, 0, 72, 0, 0, 0],
            b"\x01\x01o\0\x02\0\0\0/p\0\0\0\0\0\0",
            b"\x06\x01s\0\x03\0\0\0d.e\0\0\0\0\0",
            b"\x02\x01s\0\x03\0\0\0i.f\0\0\0\0\0",
            b"\x03\x01s\0\x01\0\0\0M\0\0\0\0\0\0\0",
            b"\x08\x01g\0\x02ss\0",
            b"\x02\0\0\0ab\0\0\x01\0\0\0c\0",
        ]
        .concat();
        assert_eq!(sent, expected);
    }

    #[test]
    fn a_value_of_another_type_is_not_understood() {
        assert_eq!(value(&[1, b'u', 0, 0, 7, 0, 0, 0]), None);
        assert_eq!(value(&[1, b's', 0, 0, 200, 0, 0, 0, b'a']), None, "it is cut off");
        assert_eq!(value(&[]), None);
    }
}
