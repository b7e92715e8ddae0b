//! What every store must do, as a list of named cases that run against any [`crate::ObjectStore`].
