//! The documents of `verify`.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

documents! {
    VerifyRequest {
        /// Names, ids, or unique beginnings of ids; none is all images.
        images: Vec<String>,
        /// Fetch again what is damaged.
        repair: bool,
    }
    /// What a check found.
    Verified {
        /// Sorted by name.
        images: Vec<VerifiedImage>,
        /// What is wrong with the store's own files and kept blobs.
        store: VerifiedPart,
        /// Whether damage is left.
        damaged: bool,
    }
    /// An image after its check.
    VerifiedImage {
        id: String,
        /// Full names with tag.
        names: Vec<String>,
        /// Full names with digest.
        digests: Vec<String>,
        /// `ok`, `damaged`, `repaired`, or `unchecked` where there is nothing to hold it to.
        result: String,
        /// Its record, manifest, configuration and index.
        documents: VerifiedPart,
        /// Lowest first.
        layers: Vec<VerifiedLayer>,
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    }
    /// A layer after its check.
    VerifiedLayer {
        /// Digest of the uncompressed layer.
        diff_id: String,
        /// Digest of the layer as the registry has it, where known.
        blob: Option<String>,
        /// What was found in it.
        #[serde(flatten)]
        part: VerifiedPart,
        /// Paths that were looked at.
        files: u64,
        bytes: u64,
        /// Files whose content only root may read; all else of them was compared.
        unread: u64,
    }
    /// What was found in one place.
    VerifiedPart {
        /// `ok`, `damaged` or `unchecked`; `repaired` where damage was mended.
        result: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// The first findings.
        findings: Vec<VerifiedFinding>,
        more: u64,
    }
    /// Something that is not as it was pulled.
    VerifiedFinding {
        /// Where, below the folder of the image or layer in the store.
        path: String,
        /// `missing`, `extra`, `type`, `size`, `content`, `target`, `device`, `mode`, `owner`, `mtime`, `xattrs` or
        /// `unreadable`.
        what: String,
        /// The same for people.
        detail: String,
    }
}
