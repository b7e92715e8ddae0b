//! The io_uring worker: ring, fixed files, fixed buffers, wake.
//!
//! *Owns*: every use of the `io-uring` crate on the data path: the ring itself, its table of fixed files, its
//! table of fixed buffers, the operations in flight with the purpose of each, and the heap buffers lent to
//! them.
//! *Does not own*: the meaning of the completions. The owner of the ring gives each operation a value of its
//! own type, which [`Ring::end`] returns for its completion.
//! *Runs on*: one thread; a [`Ring`] is neither `Send` nor `Sync`. Only a [`Waker`] crosses threads.
//! *Invariants*: the ring submits each pushed entry exactly once and hands out its completion exactly once;
//! memory lent to the kernel stays allocated until that completion.
//! *On failure*: pushing cannot fail; a broken ring makes [`Ring::submit_and_wait`] fail, after which its
//! owner can only drop it.

mod completion;
mod error;
mod file_limit;
mod heap_buffer;
mod operation;
mod operation_table;
mod provided_buffer;
mod ring;
mod ring_operation;
mod slot;
mod waker;

pub use completion::{Completion, Ended, IoResult, KernelErrno};
pub use error::RingError;
pub use file_limit::raise_open_file_limit;
pub use heap_buffer::HeapBuffer;
pub use operation::{FileRange, FixedTransfer, Pause};
pub use provided_buffer::ProvidedBuffer;
pub use ring::{Ring, RingOptions};
pub use ring_operation::RingOperation;
pub use slot::{BufferRange, FileSlot};
pub use waker::Waker;
