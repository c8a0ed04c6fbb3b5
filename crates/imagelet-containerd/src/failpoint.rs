//! The steps of an import, each of which may be the last one of the process.

imagelet_core::failpoints! {
    /// The lease is made.
    ImportLeased = "import.leased",
    /// The layers that containerd has already are held.
    ImportHeld = "import.held",
    /// A snapshot is prepared for a layer.
    ImportPrepared = "import.prepared",
    /// The layer is in the snapshot's place.
    ImportRenamed = "import.renamed",
    /// The snapshot is committed.
    ImportCommitted = "import.committed",
    /// A packed layer is written.
    ImportBlob = "import.blob",
    /// A document is written.
    ImportDocument = "import.document",
    /// An image record is written.
    ImportImage = "import.image",
    /// CRI shows the image.
    ImportShown = "import.shown",
    /// The lease is ended.
    ImportReleased = "import.released",
}
