//! Tests of the heap, by a mutator that allocates as compiled code does.

mod limits;
mod model;
mod mutator;
mod roots;
mod structures;
