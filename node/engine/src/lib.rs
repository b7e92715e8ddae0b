//! The volume planner: no I/O, no clock, no threads.
