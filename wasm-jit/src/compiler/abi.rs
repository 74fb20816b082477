//! Where arguments and results are.
