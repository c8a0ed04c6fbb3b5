//! The files of a store on the disk: its root folder, the lock of its owner, durable writes, walks through trees.

pub(super) mod durable;
pub(super) mod lock;
pub(super) mod root;
pub(super) mod walk;
