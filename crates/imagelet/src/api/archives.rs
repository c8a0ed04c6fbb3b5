//! The documents of `export` and `import`.

use std::path::PathBuf;

use imagelet_core::runtime::ArchivePlace;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

documents! {
    ExportRequest {
        image: String,
        place: ArchivePlace,
    }
    Exported {
        image: String,
        id: String,
        /// Digest of the index; of the manifest if the image has no index.
        digest: String,
        path: PathBuf,
        /// Bytes of all blobs in the archive.
        size: u64,
    }
    ImportRequest {
        place: ArchivePlace,
        /// The name of the only image, instead of those in the archive.
        name: Option<String>,
        /// `OS/ARCH`; absent means this machine.
        platform: Option<String>,
        /// Pin each name.
        pin: bool,
    }
    Imported {
        images: Vec<ImportedRow>,
    }
    ImportedRow {
        /// Empty where the import failed.
        id: String,
        names: Vec<String>,
        /// The image was in the store before.
        present: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    }
}
