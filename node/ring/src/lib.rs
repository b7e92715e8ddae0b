//! The io_uring worker: ring, fixed files, fixed buffers, wake.
