//! The writers in a volume's log: the attached one, and earlier attaches.

use std::collections::VecDeque;

use holdfast_types::{Epoch, Nonce, Seq};

use crate::displaced::Displaced;
use crate::limit::REMEMBERED_ATTACHES;
use crate::wire::{self, DecodeError, Reader};

/// An attach record of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoggedAttach {
    pub(super) epoch: Epoch,
    pub(super) nonce: Nonce,
    pub(super) seq: Seq,
}

/// The writers of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Writers {
    /// True if the newest attach was not followed by its detach.
    pub(super) attached: bool,
    /// Node of the newest attach.
    pub(super) node: String,
    /// Time of the newest attach, milliseconds since 1970.
    pub(super) since_unix_ms: u64,
    /// The writer that it displaced.
    pub(super) displaced: Option<Displaced>,
    /// True if a writer was ever replaced.
    pub(super) replaced: bool,
    /// Oldest first, at most [`REMEMBERED_ATTACHES`].
    attaches: VecDeque<LoggedAttach>,
}

impl Writers {
    /// Returns the newest attach.
    pub(super) fn newest(&self) -> Option<&LoggedAttach> {
        self.attaches.back()
    }

    /// Attaches the writer of `attach`, created at `unix_ms` (milliseconds since 1970).
    pub(super) fn attach(
        &mut self,
        attach: LoggedAttach,
        unix_ms: u64,
        node: &str,
        displaced: Option<&Displaced>,
    ) {
        self.attached = true;
        node.clone_into(&mut self.node);
        self.since_unix_ms = unix_ms;
        self.displaced = displaced.cloned();
        self.replaced |= displaced.is_some();
        self.attaches.push_back(attach);
        while self.attaches.len() > REMEMBERED_ATTACHES {
            self.attaches.pop_front();
        }
    }

    /// Returns the attach that follows this one, if any; the outer `None` if the log does not have this one.
    pub(super) fn next_after(&self, epoch: Epoch, nonce: Nonce) -> Option<Option<&LoggedAttach>> {
        let mut from_it = self.attaches.iter().skip_while(|at| at.epoch != epoch || at.nonce != nonce);
        from_it.next()?;
        Some(from_it.next())
    }

    /// Returns true if the attach of `epoch` is the one of `writer`, or too old to be remembered.
    pub(super) fn has_attach(&self, epoch: Epoch, writer: Nonce) -> bool {
        let there = self.attaches.iter().find(|at| at.epoch == epoch);
        epoch == Epoch(0)
            || self.oldest_if_full().is_some_and(|oldest| oldest.epoch > epoch)
            || there.is_some_and(|at| at.nonce == writer)
    }

    /// Returns true if every attach after `epoch` is known and carries one of `nonces`.
    pub(super) fn are_all_of(&self, epoch: Epoch, nonces: &[Nonce]) -> bool {
        let is_forgotten = self.oldest_if_full().is_some_and(|oldest| oldest.epoch > epoch.next());
        !is_forgotten
            && self.attaches.iter().filter(|at| at.epoch > epoch).all(|at| nonces.contains(&at.nonce))
    }

    /// Returns true if the record at `seq` is a remembered attach.
    pub(super) fn has_attach_at(&self, seq: Seq) -> bool {
        self.attaches.iter().any(|at| at.seq == seq)
    }

    /// Returns true if `seq` is older than all remembered attaches, and earlier ones were dropped.
    pub(super) fn forgot(&self, seq: Seq) -> bool {
        self.oldest_if_full().is_some_and(|oldest| seq < oldest.seq)
    }

    fn oldest_if_full(&self) -> Option<&LoggedAttach> {
        self.attaches.front().filter(|_| self.attaches.len() == REMEMBERED_ATTACHES)
    }

    /// Appends the data of the newest attach.
    pub(super) fn put_newest(&self, out: &mut Vec<u8>) {
        wire::put_text(out, &self.node);
        out.extend_from_slice(&self.since_unix_ms.to_le_bytes());
        Displaced::put(self.displaced.as_ref(), out);
    }

    pub(super) fn take_newest(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (node, since_unix_ms) = (fields.text()?, fields.u64()?);
        Ok(Self { node, since_unix_ms, displaced: Displaced::take(fields)?, ..Self::default() })
    }

    /// Appends all attaches.
    pub(super) fn put_attaches(&self, out: &mut Vec<u8>) {
        let count = u32::try_from(self.attaches.len()).expect("REMEMBERED_ATTACHES fits");
        out.extend_from_slice(&count.to_le_bytes());
        for LoggedAttach { epoch, nonce, seq } in &self.attaches {
            out.extend_from_slice(&epoch.0.to_le_bytes());
            out.extend_from_slice(&nonce.0);
            out.extend_from_slice(&seq.0.to_le_bytes());
        }
    }

    pub(super) fn take_attaches(&mut self, fields: &mut Reader<'_>) -> Result<(), DecodeError> {
        for _ in 0..fields.count(32)? {
            let (epoch, nonce) = (Epoch(fields.u64()?), Nonce(fields.array()?));
            self.attaches.push_back(LoggedAttach { epoch, nonce, seq: Seq(fields.u64()?) });
        }
        Ok(())
    }
}
