//! Layers as attackers and as builders make them.
