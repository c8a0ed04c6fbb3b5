//! The numbered steps of the store and of its mounts, each of which may be the last one of the process.

imagelet_core::failpoints! {
    /// The root or one of its folders is made.
    OpenFolder = "open.folder",
    /// The store is owned.
    OpenLocked = "open.locked",
    /// A damaged `names.json` is renamed, not yet rebuilt.
    OpenSetAside = "open.set-aside",
    /// The index is loaded.
    OpenLoaded = "open.loaded",
    /// What was left in `tmp/` lies in the trash.
    OpenTmp = "open.tmp",
    /// So do layers that nobody needs.
    OpenLayers = "open.layers",
    /// So do image folders that nobody knows.
    OpenImages = "open.images",
    /// So do mounts without a note.
    OpenMounts = "open.mounts",
    /// A folder under `tmp/` is made.
    StageMade = "stage.made",
    /// The file of a blob that shall be kept is open under `ingest/`.
    BlobBegun = "blob.begun",
    /// The blob is complete there, and its digest is the right one.
    BlobWritten = "blob.written",
    /// It is in its place under `blobs/`, whose folder is not synced yet.
    BlobKept = "blob.kept",
    /// A layer's empty `fs/` is made.
    UnpackTree = "unpack.tree",
    /// Its last entry is unpacked.
    UnpackEnd = "unpack.end",
    /// Its diff-id is the right one.
    UnpackVerified = "unpack.verified",
    /// `ownership.json` is written; only without root.
    UnpackOwnership = "unpack.ownership",
    /// `implicit.json` is written.
    UnpackImplicit = "unpack.implicit",
    /// `layer.json` is written.
    LayerRecorded = "layer.recorded",
    /// One of an image's documents is written.
    CommitDocument = "commit.document",
    /// `image.json` is written.
    CommitRecorded = "commit.recorded",
    /// All content is synced.
    CommitSynced = "commit.synced",
    /// What lay at the place of a layer or an image, unknown, is in the trash.
    CommitStranger = "commit.stranger",
    /// One layer or the image's folder is at its place.
    CommitRenamed = "commit.renamed",
    /// The folder of the layers is synced.
    CommitLayers = "commit.layers",
    /// The folder of the images is synced.
    CommitImages = "commit.images",
    /// The names are on disk, not yet in memory.
    CommitNamed = "commit.named",
    /// The names are written for this boot only, not synced, not yet in memory.
    CommitNamedUnsettled = "commit.named-unsettled",
    /// All that was shown before is synced; the marks are still on.
    SettleSynced = "settle.synced",
    /// One layer's mark is off, not synced.
    SettleMark = "settle.mark",
    /// All marks are off and synced; the names are not durable yet.
    SettleMarks = "settle.marks",
    /// Changed names of an image that is here are on disk, not yet in memory.
    NamesChanged = "names.changed",
    /// `names.json` or a mount's note is about to be replaced: the file beside it is open.
    FileCreated = "file.created",
    /// It is written, not synced.
    FileWritten = "file.written",
    /// It is synced.
    FileSynced = "file.synced",
    /// It is in its place.
    FileRenamed = "file.renamed",
    /// Its folder is synced.
    FileDurable = "file.durable",
    /// A layer or folder is about to be renamed into the trash.
    TrashBefore = "trash.before",
    /// It is there.
    TrashMoved = "trash.moved",
    /// It is about to be unlinked.
    TrashUnlink = "trash.unlink",
    /// It is gone.
    TrashUnlinked = "trash.unlinked",
    /// The layers nobody needs are in the trash.
    SweepLayers = "sweep.layers",
    /// So are the image folders nobody knows.
    SweepImages = "sweep.images",
    /// A mount's folder is made.
    MountPrepared = "mount.prepared",
    /// The directories of its upper layer are built.
    MountParents = "mount.parents",
    /// Its overlay exists, attached nowhere, and its note is written.
    MountNoted = "mount.noted",
    /// The kernel shows it.
    MountShown = "mount.shown",
    /// The kernel shows it no longer.
    UnmountHidden = "unmount.hidden",
    /// Its note is gone, its folder is not.
    UnmountNote = "unmount.note",
    /// Nothing of it is left.
    UnmountDone = "unmount.done",
}

/// The numbered steps of an import, each of which may be the last one of the process.
pub mod import {
    imagelet_core::failpoints! {
        /// The sink has begun the import; no layer has been asked for.
        Begun = "import.begun",
        /// One layer is whole, and the sink does not have it yet.
        LayerWhole = "import.layer-whole",
        /// The sink has one layer; what is left of its folder lies in `tmp/`.
        LayerTaken = "import.layer-taken",
        /// The sink has all layers, which are not synced.
        LayersTaken = "import.layers-taken",
        /// They are synced; nothing names the image.
        Synced = "import.synced",
        /// The sink shows the image.
        Finished = "import.finished",
    }
}
