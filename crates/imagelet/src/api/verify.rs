//! The documents of `verify`.

use imagelet_core::runtime::Finding;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

documents! {
    VerifyRequest {
        /// Names, ids, or unique prefixes of ids; empty means all images.
        images: Vec<String>,
        repair: bool,
    }
    Verified {
        images: Vec<VerifiedImage>,
        /// Findings in the store's own files and blobs.
        store: VerifiedPart,
        damaged: bool,
    }
    VerifiedImage {
        id: String,
        names: Vec<String>,
        digests: Vec<String>,
        /// `ok`, `damaged` or `repaired`.
        result: String,
        /// Record, manifest, configuration and index.
        documents: VerifiedPart,
        layers: Vec<VerifiedLayer>,
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    }
    VerifiedLayer {
        /// Digest of the uncompressed layer.
        diff_id: String,
        blob: Option<String>,
        #[serde(flatten)]
        part: VerifiedPart,
        files: u64,
        bytes: u64,
        /// Files whose content only root may read; their metadata was compared.
        unread: u64,
    }
    VerifiedPart {
        /// `ok`, `damaged` or `repaired`.
        result: String,
        /// The first findings, with paths below the folder of the image or layer in the store.
        findings: Vec<Finding>,
        more: u64,
    }
}
