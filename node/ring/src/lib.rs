//! The io_uring worker: ring, fixed files, fixed buffers, wake.
//!
//! *Owns*: every use of the `io-uring` crate on the data path: the ring itself, its table of fixed
//! files, its table of fixed buffers, and the heap buffers that are in flight.
//! *Does not own*: what the completions mean. The owner of the ring dispatches on
//! [`UserData::kind`].
//! *Runs on*: one thread; a [`Ring`] is neither `Send` nor `Sync`. Only a [`Waker`] crosses threads.
//! *Invariants*: an entry that was pushed is submitted exactly once and its completion is handed out
//! exactly once; memory lent to the kernel stays allocated until that completion.
//! *On failure*: pushing cannot fail; a broken ring shows as an error of [`Ring::submit_and_wait`],
//! after which the only thing left to do is to drop it.

mod completion;
mod error;
mod file_limit;
mod heap_buffer;
mod operation;
mod ring;
mod slot;
mod user_data;
mod waker;

pub use completion::{Completion, Errno};
pub use error::RingError;
pub use file_limit::raise_open_file_limit;
pub use heap_buffer::HeapBuffer;
pub use operation::{FileRange, FixedTransfer};
pub use ring::{Ring, RingOptions};
pub use slot::{BufferRange, FileSlot};
pub use user_data::UserData;
pub use waker::Waker;
