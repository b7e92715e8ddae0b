//! The holdfast.dev custom resources.
