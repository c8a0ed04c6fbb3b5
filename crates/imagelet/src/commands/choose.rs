//! Which node a command talks to: the one it names, the daemon if there is one, or the store in this process.

use std::path::Path;

use imagelet_cri::Endpoint;

use crate::{
    cli::Global,
    config::{Environment, Layers},
    failure::Failure,
    node::{Node, RemoteNode, Spoken},
    serve::{Role, open_node},
};

/// Finds the node, and opens it where it is in this process.
pub(super) async fn choose(global: &Global, environment: &Environment) -> Result<Node, Failure> {
    if let Some(endpoint) = &global.endpoint {
        return by_endpoint(endpoint, environment).await;
    }
    if let Some(store) = &global.store {
        return embedded(Some(store), environment).await;
    }
    for socket in environment.sockets_to_try() {
        let node = RemoteNode::new(&socket);
        if node.probe().await == Some(Spoken::Ours) {
            return Ok(Node::Remote(node));
        }
    }
    embedded(None, environment).await
}

/// A running imagelet, or any CRI runtime, which is then driven from this process.
async fn by_endpoint(endpoint: &str, environment: &Environment) -> Result<Node, Failure> {
    let address: Endpoint = endpoint.parse().map_err(|error: imagelet_cri::EndpointError| {
        Failure::because(format!("`{endpoint}` is no endpoint"), &error)
    })?;
    let node = RemoteNode::new(address.path());
    if node.probe().await != Some(Spoken::OtherCri) {
        // Whether it is ours or nobody is there: the first command tells.
        return Ok(Node::Remote(node));
    }
    let mut layers = layers(environment)?;
    layers.add_flag("--endpoint", "imageService.cri.endpoint", endpoint);
    open(&layers).await
}

async fn embedded(store: Option<&std::path::PathBuf>, environment: &Environment) -> Result<Node, Failure> {
    let mut layers = layers(environment)?;
    if let Some(store) = store {
        let absolute = std::path::absolute(store).map_err(|error| Failure::of(&error))?;
        layers.add_flag("--store", "store.directory", text(&absolute)?);
        // Whoever names a store on the command line wants that one, whatever the file says.
        layers.add_flag("--store", "imageService.cri.endpoint", "");
    }
    open(&layers).await
}

/// Defaults, and the file that the environment names.
fn layers(environment: &Environment) -> Result<Layers, Failure> {
    let mut layers = Layers::new(environment.clone());
    if let Some(file) = &environment.config {
        layers.add_file(file).map_err(|error| Failure::of(&error))?;
    }
    Ok(layers)
}

fn text(path: &Path) -> Result<String, Failure> {
    let text =
        path.to_str().ok_or_else(|| Failure::new("InvalidArgument", format!("`{}` is not UTF-8", path.display())))?;
    Ok(text.to_owned())
}

async fn open(layers: &Layers) -> Result<Node, Failure> {
    let settings = layers.settings().map_err(|error| Failure::of(&error))?;
    Ok(Node::Local(open_node(settings, Role::Command).await?))
}
