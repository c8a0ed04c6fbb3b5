//! Four layers over TLS: by four connections of HTTP/1.1, and by one of HTTP/2. The figures of `docs/registries.md`.
//!
//! `cargo bench -p imagelet-oci --bench http2` prints the best of several rounds, on loopback and through a relay that
//! delays each direction by 10 ms and limits no rate: what is compared is flow control and processor time, not
//! congestion, for which four connections have four windows.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{body::Incoming, client::conn as client, server::conn as server, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::Instant,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

const LAYERS: usize = 4;
const LAYER_BYTES: usize = 64 << 20;
const ROUNDS: usize = 5;
const DELAY: Duration = Duration::from_millis(10);
const LOOPBACK: &str = "127.0.0.1:0";

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy)]
enum Protocol {
    Http1,
    /// Windows as hyper has them: 2 MiB for a stream, 5 MiB for the connection.
    Http2,
    /// Windows that grow with the measured delay.
    Http2Adaptive,
}

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> Result<(), Failure> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let key = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])?.self_signed(&key)?.der().clone();
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    let origin = serve(&provider, certificate.clone(), key).await?;
    let delayed = relay(origin).await?;
    println!("{LAYERS} layers of {} MiB, best of {ROUNDS} rounds", LAYER_BYTES >> 20);
    for (way, address) in [("loopback", origin), ("20 ms there and back", delayed)] {
        for (name, protocol) in [
            ("HTTP/1.1, 4 connections", Protocol::Http1),
            ("HTTP/2, 1 connection", Protocol::Http2),
            ("HTTP/2, 1 connection, adaptive windows", Protocol::Http2Adaptive),
        ] {
            let mut best = Duration::MAX;
            for _ in 0..ROUNDS {
                let tls = connector(&provider, &certificate, protocol)?;
                let began = Instant::now();
                fetch(address, &tls, protocol).await?;
                best = best.min(began.elapsed());
            }
            let rate = (LAYERS * LAYER_BYTES) as f64 / best.as_secs_f64() / 1e6;
            println!("{way:>20}  {name:<40} {:6.0} ms  {rate:5.0} MB/s", best.as_secs_f64() * 1e3);
        }
    }
    Ok(())
}

/// Connects and fetches all layers at once.
async fn fetch(address: SocketAddr, tls: &TlsConnector, protocol: Protocol) -> Result<(), Failure> {
    let request = || http::Request::get(format!("https://{address}/")).body(Empty::<Bytes>::new());
    if let Protocol::Http1 = protocol {
        let layer = async || {
            let io = TokioIo::new(connect(address, tls).await?);
            let (mut sender, connection) = client::http1::Builder::new().max_buf_size(128 << 10).handshake(io).await?;
            let driver = tokio::spawn(connection);
            drain(sender.send_request(request()?).await?).await?;
            driver.abort();
            Ok::<_, Failure>(())
        };
        try_join_all((0..LAYERS).map(|_| layer())).await?;
        return Ok(());
    }
    let mut builder = client::http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).adaptive_window(matches!(protocol, Protocol::Http2Adaptive));
    let (sender, connection) = builder.handshake(TokioIo::new(connect(address, tls).await?)).await?;
    let driver = tokio::spawn(connection);
    let layer = async || drain(sender.clone().send_request(request()?).await?).await;
    try_join_all((0..LAYERS).map(|_| layer())).await?;
    driver.abort();
    Ok(())
}

async fn drain(response: http::Response<Incoming>) -> Result<(), Failure> {
    let (mut body, mut length) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        length += frame?.data_ref().map_or(0, Bytes::len);
    }
    if length == LAYER_BYTES { Ok(()) } else { Err(format!("{length} bytes").into()) }
}

async fn connect(address: SocketAddr, tls: &TlsConnector) -> Result<TlsStream<TcpStream>, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(tls.connect(ServerName::from(address.ip()), stream).await?)
}

fn connector(
    provider: &Arc<CryptoProvider>,
    certificate: &CertificateDer<'static>,
    protocol: Protocol,
) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let config = ClientConfig::builder_with_provider(Arc::clone(provider)).with_safe_default_protocol_versions()?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    let alpn: &[u8] = if let Protocol::Http1 = protocol { b"http/1.1" } else { b"h2" };
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A server that answers each request with one layer.
async fn serve(
    provider: &Arc<CryptoProvider>,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<SocketAddr, Failure> {
    let config = ServerConfig::builder_with_provider(Arc::clone(provider)).with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let layer = Bytes::from(vec![7; LAYER_BYTES]);
    let listener = TcpListener::bind(LOOPBACK).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, layer) = (acceptor.clone(), layer.clone());
            tokio::spawn(async move {
                stream.set_nodelay(true)?;
                let stream = acceptor.accept(stream).await?;
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(move |_| {
                    let response = http::Response::new(Full::new(layer.clone()));
                    async { Ok::<_, Infallible>(response) }
                });
                // A client that has all it wants closes the connection.
                let _ = if is_http2 {
                    let server = server::http2::Builder::new(TokioExecutor::new());
                    server.serve_connection(TokioIo::new(stream), service).await
                } else {
                    server::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
                };
                Ok::<_, std::io::Error>(())
            });
        }
    });
    Ok(address)
}

/// Passes bytes on, each [`DELAY`] after it came.
async fn relay(origin: SocketAddr) -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind(LOOPBACK).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let far = TcpStream::connect(origin).await?;
                near.set_nodelay(true)?;
                far.set_nodelay(true)?;
                let ((near_reader, near_writer), (far_reader, far_writer)) = (near.into_split(), far.into_split());
                join_all([tokio::spawn(pass(near_reader, far_writer)), tokio::spawn(pass(far_reader, near_writer))])
                    .await;
                Ok::<_, std::io::Error>(())
            });
        }
    });
    Ok(address)
}

async fn pass(mut reader: impl AsyncRead + Unpin, mut writer: impl AsyncWrite + Send + Unpin + 'static) {
    let (sender, mut pieces) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            if writer.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = writer.shutdown().await;
    });
    let mut buffer = vec![0; 256 << 10];
    while let Ok(length @ 1..) = reader.read(&mut buffer).await {
        if sender.send((Instant::now() + DELAY, buffer[..length].to_vec())).is_err() {
            return;
        }
    }
}
