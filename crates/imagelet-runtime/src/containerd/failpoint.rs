//! The steps of an import, each of which may be the last one of the process.

imagelet_core::failpoints! {
    ImportLeased = "import.leased",
    ImportHeld = "import.held",
    ImportPrepared = "import.prepared",
    ImportRenamed = "import.renamed",
    ImportCommitted = "import.committed",
    ImportBlob = "import.blob",
    ImportDocument = "import.document",
    ImportImage = "import.image",
    ImportShown = "import.shown",
    ImportReleased = "import.released",
}
