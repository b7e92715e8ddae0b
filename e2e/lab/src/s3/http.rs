//! HTTP/1.1 messages for the fault proxy: complete, and otherwise unchanged.

use std::io::{BufRead, Read};

use anyhow::{Context, Result, bail, ensure};

/// Maximum length of a head, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// The first line and the headers of a message.
#[derive(Debug, Clone)]
pub(super) struct Head {
    first: String,
    headers: Vec<(String, String)>,
}

impl Head {
    /// Reads a head; `None` if the connection ended before one began.
    pub(super) fn read(from: &mut impl BufRead) -> Result<Option<Self>> {
        let mut lines = Vec::new();
        let mut bytes = 0;
        loop {
            let mut line = String::new();
            bytes += from.read_line(&mut line).context("read a head")?;
            ensure!(bytes <= MAX_HEAD_BYTES, "a head of more than {MAX_HEAD_BYTES} bytes");
            if line.is_empty() {
                ensure!(lines.is_empty(), "the connection ended inside a head");
                return Ok(None);
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            lines.push(line.to_owned());
        }
        let mut lines = lines.into_iter();
        let first = lines.next().context("a head without a first line")?;
        let mut headers = Vec::new();
        for line in lines {
            let (name, value) = line.split_once(':').with_context(|| format!("no header: {line:?}"))?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        Ok(Some(Self { first, headers }))
    }

    /// Returns a word of the first line: request method, target and version, or response version and status.
    pub(super) fn word(&self, index: usize) -> &str {
        self.first.split(' ').nth(index).unwrap_or_default()
    }

    /// Sets the method of a request.
    pub(super) fn set_method(&mut self, method: &str) {
        let rest = self.first.split_once(' ').map_or("", |(_, rest)| rest);
        self.first = format!("{method} {rest}");
    }

    /// Returns a header's value.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Sets a header, and removes all others of that name.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    /// Removes the headers of that name.
    pub(super) fn remove(&mut self, name: &str) {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    }

    /// Returns the length of a request's body, in bytes.
    pub(super) fn body_bytes(&self) -> Result<usize> {
        ensure!(self.get("transfer-encoding").is_none(), "a chunked request: {}", self.first);
        let length = self.get("content-length").unwrap_or("0");
        length.parse().with_context(|| format!("content-length {length:?}"))
    }

    /// Encodes it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{}\r\n", self.first);
        for (name, value) in &self.headers {
            text.push_str(name);
            text.push_str(": ");
            text.push_str(value);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        text.into_bytes()
    }
}

/// A server's response on a connection that ends with it.
#[derive(Debug)]
pub(super) struct ServerResponse {
    /// Its head, without the field about the connection's end.
    pub(super) head: Head,
    /// Its encoded body.
    pub(super) body: Vec<u8>,
}

impl ServerResponse {
    /// Reads the response up to the connection's end.
    pub(super) fn read(from: &mut impl BufRead) -> Result<Self> {
        loop {
            let Some(mut head) = Head::read(from)? else { bail!("the server did not answer") };
            // "100 Continue" precedes the actual response.
            if head.word(1) == "100" {
                continue;
            }
            head.remove("connection");
            let mut body = Vec::new();
            from.read_to_end(&mut body).context("read the answer's body")?;
            return Ok(Self { head, body });
        }
    }

    /// Returns an error in S3's format.
    pub(super) fn error(status: &str, code: &str) -> Self {
        Self::refusal(status, code, "")
    }

    /// Returns an error in S3's format, with a message.
    pub(super) fn refusal(status: &str, code: &str, message: &str) -> Self {
        let error = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
        Self::with_body(
            status,
            "application/xml",
            format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>{error}"),
        )
    }

    /// Returns a page of a server that is not S3.
    pub(super) fn page(status: &str) -> Self {
        let page = "<!DOCTYPE html><html><body><form action=\"/login\"></form></body></html>";
        Self::with_body(status, "text/html", page.to_owned())
    }

    fn with_body(status: &str, kind: &str, body: String) -> Self {
        let headers = vec![
            ("Content-Type".to_owned(), kind.to_owned()),
            ("Content-Length".to_owned(), body.len().to_string()),
        ];
        Self { head: Head { first: format!("HTTP/1.1 {status}"), headers }, body: body.into_bytes() }
    }

    /// Encodes it.
    pub(super) fn bytes(&self) -> Vec<u8> {
        [self.head.bytes(), self.body.clone()].concat()
    }
}

/// Reads `bytes` bytes of a body.
pub(super) fn read_body(from: &mut impl Read, bytes: usize) -> Result<Vec<u8>> {
    let mut body = vec![0; bytes];
    from.read_exact(&mut body).context("read a body")?;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_passed_on_except_for_its_connection() {
        let answer =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\nEtag: x\r\n\r\nbody";
        let answer = ServerResponse::read(&mut &answer[..]).unwrap();
        assert_eq!(answer.head.word(1), "200");
        assert_eq!(answer.bytes(), b"HTTP/1.1 200 OK\r\nEtag: x\r\n\r\nbody");
    }

    #[test]
    fn a_head_has_the_length_of_its_body() {
        let request = b"PUT /bucket/key?x-id=PutObject HTTP/1.1\r\nhost: s3\r\nContent-Length: 5\r\n\r\n";
        let head = Head::read(&mut &request[..]).unwrap().unwrap();
        assert_eq!((head.word(0), head.body_bytes().unwrap()), ("PUT", 5));
        assert!(Head::read(&mut &b""[..]).unwrap().is_none());
        assert!(Head::read(&mut &b"PUT /bucket HTTP/1.1\r\n"[..]).is_err(), "half a head is none");
    }
}
