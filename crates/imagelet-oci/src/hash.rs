//! A running hash, by the algorithm of a digest.

use aws_lc_rs::digest::{Context, SHA256, SHA384, SHA512};
use imagelet_core::image::{Digest, DigestAlgorithm};

#[derive(Clone)]
pub(crate) struct Hash {
    algorithm: DigestAlgorithm,
    context: Context,
}

impl Hash {
    pub(crate) fn new(algorithm: DigestAlgorithm) -> Self {
        let context = Context::new(match algorithm {
            DigestAlgorithm::Sha256 => &SHA256,
            DigestAlgorithm::Sha384 => &SHA384,
            DigestAlgorithm::Sha512 => &SHA512,
        });
        Self { algorithm, context }
    }

    pub(crate) fn digest(algorithm: DigestAlgorithm, bytes: &[u8]) -> Digest {
        let mut hash = Self::new(algorithm);
        hash.update(bytes);
        hash.finish()
    }

    pub(crate) fn matches(wanted: &Digest, bytes: &[u8]) -> bool {
        Self::digest(wanted.algorithm(), bytes) == *wanted
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        Digest::from_hash(self.algorithm, self.context.finish().as_ref())
    }
}
