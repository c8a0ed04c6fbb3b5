//! What the engine lists, while it changes.

use std::sync::Arc;

use imagelet_core::{
    image::{Image, ImageSpec},
    ports::{ImageService as _, Listing, LocalStore as _},
};
use imagelet_oci::Engine;

use super::{
    fixture::{Layer, TestRegistry},
    open, pull,
};

/// The list, which status and a second list have to agree with.
async fn list(engine: &Engine) -> Listing {
    let whole = engine.list(None).await.expect("a list");
    for image in whole.iter() {
        let found = engine.status(&ImageSpec::new(image.id.as_str())).await.expect("a status");
        assert_eq!(found.as_ref(), Some(&**image));
        let listed = engine.list(Some(&ImageSpec::new(image.tags[0].as_str()))).await.expect("a list");
        assert_eq!(&*listed, std::slice::from_ref(image));
    }
    assert_eq!(engine.list(None).await.expect("a list"), whole);
    whole
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_and_a_status_say_what_is_there_after_each_change() {
    let registry = TestRegistry::start().await;
    for name in ["a", "b"] {
        registry.image(name, "v1", &[Layer::new().file("bin/x", name.as_bytes()).gzip()]);
    }
    registry.image("a", "v2", &[Layer::new().file("bin/x", b"a").gzip()]);
    let folder = tempfile::tempdir().expect("a folder");
    let engine = open(folder.path()).await;
    assert!(list(&engine).await.is_empty());

    let a = pull(&engine, &registry.name("a:v1")).await.expect("pulled");
    // A status before any list is made of what came.
    let found = engine.status(&ImageSpec::new(a.as_str())).await.expect("a status").expect("it is there");
    assert_eq!(*list(&engine).await, [Arc::new(found)]);

    let b = pull(&engine, &registry.name("b:v1")).await.expect("pulled");
    let both = list(&engine).await;
    assert_eq!(both.len(), 2);
    assert!(both.is_sorted_by(|one, other| one.id < other.id));

    assert_eq!(pull(&engine, &registry.name("a:v2")).await.expect("pulled"), a, "the same image by another name");
    let tags = |images: &[Arc<Image>]| images.iter().find(|image| image.id == a).map_or(0, |image| image.tags.len());
    assert_eq!(tags(&list(&engine).await), 2);
    engine.untag(&registry.name("a:v1")).await.expect("taken away");
    assert_eq!(tags(&list(&engine).await), 1);

    engine.remove(&ImageSpec::new(a.as_str())).await.expect("removed");
    assert_eq!(engine.status(&ImageSpec::new(a.as_str())).await.expect("a status"), None);
    let left = list(&engine).await;
    assert_eq!(left.iter().map(|image| &image.id).collect::<Vec<_>>(), [&b]);
    drop(engine);
    assert_eq!(list(&*open(folder.path()).await).await, left);
}
