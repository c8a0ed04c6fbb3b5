//! What the inventory knows of ensured images: for which pod, how often, and the cost.

use std::time::SystemTime;

use super::*;
use crate::{
    inventory::{self, Inventory},
    testing::FakeRuntime,
};

#[tokio::test]
async fn an_ensured_image_has_its_user_and_its_cost_in_the_inventory() {
    let fake = FakeRuntime::new();
    let runtime = RuntimeManager::new(Arc::new(fake.clone()), Arc::new(fake.clone()));
    let inventory = Arc::new(Inventory::open(runtime, None).unwrap());
    let wanted = Wanted { inventory: Some(Arc::clone(&inventory)), ..Wanted::default() };
    let node = TestNode::new(Arc::new(fake.clone()), wanted);
    fake.offer("app:v1", "app", 1000);

    node.ensure(&request("app:v1")).await.unwrap();
    let snapshot = inventory.refresh(SystemTime::now()).await.unwrap();
    let entry = &snapshot.entries[0];
    assert_eq!((entry.usage.history.uses, entry.usage.user.as_deref()), (1, Some("default/web")));
    assert_eq!(entry.usage.origin, inventory::ImageOrigin::Pulled);
    let pulled = entry.usage.pulled.unwrap();
    assert!(pulled.bytes > ByteSize::ZERO && pulled.at <= snapshot.taken_at);

    // Another pod finds it there: a use, and no pull.
    let pod = PodIdentity { namespace: "shop".into(), name: "api".into(), uid: "uid-api".into() };
    node.ensure(&of_pod(pod, request("app:v1"))).await.unwrap();
    let entry = inventory.refresh(SystemTime::now()).await.unwrap().entries[0].clone();
    assert_eq!((entry.usage.history.uses, entry.usage.user.as_deref()), (2, Some("shop/api")));
    assert_eq!(entry.usage.pulled.map(|cost| cost.bytes), Some(pulled.bytes));
}
