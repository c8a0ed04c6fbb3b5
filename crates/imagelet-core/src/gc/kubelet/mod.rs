//! The kubelet's own way of collecting, to the letter, for nodes that want nothing else.

mod collect;
mod phases;

pub(super) use collect::collect;
