//! Object-store vocabulary, keys, reference store and conformance suite.
