//! The structure of the source: circular imports, names of types.

#![allow(clippy::unwrap_used)] // a test fails by panicking, in its helpers too

mod circles;
mod source;
mod type_names;
