//! The front's port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use actix_web::http::{ConnectionType, Method, StatusCode};
use actix_web::{HttpRequest, HttpResponse, guard, web};
use futures::StreamExt as _;
use htc_api::htcproc::{GROUP, RESOURCE, VERSION};
use htc_support::fair_limiter::FairPermit;
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};

use super::Front;
use super::access::AccessRequest;
use super::authentication::{User, is_still_trusted};
use crate::callbacks::monitor;
use crate::http::ListenError;
use crate::http::connection_limiter::ConnectionLimits;
use crate::http::mtls::server_config;
use crate::http::port::Port;
use crate::http::port::{Clients, serve};
use crate::jobs_api::refuse;
use crate::jobs_api::resource::discovery;
use crate::jobs_api::resource::discovery::Document;
use crate::jobs_api::resource::flow::Flow;
use crate::jobs_api::resource::list::parameters;
use crate::jobs_api::resource::request_path::RequestPath;
use crate::jobs_api::resource::selection::Selection;
use crate::jobs_api::resource::status_error::StatusError;

/// Number of threads of the port.
const THREADS: usize = 2;
/// Anybody who reaches the port may begin a handshake; only the API server completes one.
const LIMITS: ConnectionLimits = ConnectionLimits { waiting: 512, per_address: 64, known: 1024 };
/// Headers of the leader's answers that are passed on.
const SHOWN_HEADERS: [&str; 8] = [
    "content-type",
    "etag",
    "retry-after",
    "x-htc-attempt",
    "x-htc-run",
    "x-htc-offset",
    "x-htc-first-line",
    "x-htc-length",
];
/// Maximum time for the leader to begin its answer.
const ANSWER: Duration = Duration::from_secs(55);

/// Serves the API server.
pub(super) fn listen(address: SocketAddr, front: &Arc<Front>) -> Result<Port, ListenError> {
    let config = server_config(front.certificate.clone(), front.trusted_clients.clone())?;
    let shared = web::Data::from(Arc::clone(front));
    let port = serve(address, THREADS, LIMITS, Clients::Certified(config), move |app| {
        app.app_data(shared.clone()).default_service(web::to(answer));
    })?;
    tracing::info!(address = %port.address, "jobs API listening");
    Ok(port)
}

/// Serves kubelet.
pub(super) fn listen_health(address: SocketAddr, front: &Arc<Front>) -> Result<Port, ListenError> {
    let shared = web::Data::from(Arc::clone(front));
    serve(address, 1, monitor::LIMITS, Clients::Plain, move |app| {
        let get = |path: &str| web::resource(path).guard(guard::Get());
        app.app_data(shared.clone())
            .service(get("/healthz").to(|| async { HttpResponse::Ok().body("ok\n") }))
            .service(get("/readyz").to(readyz));
    })
}

/// Answers ready without a leader, too: discovery needs none.
async fn readyz(front: web::Data<Front>) -> HttpResponse {
    if front.is_ready() {
        HttpResponse::Ok().body("ok\n")
    } else {
        HttpResponse::ServiceUnavailable().body("waiting for the certificate, or for whom the API server trusts\n")
    }
}

async fn answer(request: HttpRequest, front: web::Data<Front>) -> HttpResponse {
    let front = front.into_inner();
    if !is_still_trusted(&front, &request) {
        let mut refused =
            refuse(&StatusError::unavailable("the front proxy's certificate is not accepted any more: connect again"));
        refused.head_mut().set_connection_type(ConnectionType::Close);
        return refused;
    }
    let path = request.uri().path();
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or("*/*");
    let (group, version) = (format!("/apis/{GROUP}"), format!("/apis/{GROUP}/{VERSION}"));
    let constant = match path {
        "/apis" => Some(discovery::groups(accept).ok_or_else(StatusError::not_acceptable)),
        _ if path == group => Some(Ok(discovery::group())),
        _ if path == version => Some(Ok(discovery::resources())),
        "/openapi/v2" => Some(Ok(discovery::openapi_v2())),
        "/openapi/v3" => Some(Ok(discovery::openapi_v3_paths())),
        _ if path.strip_prefix("/openapi/v3") == Some(&version) => Some(Ok(discovery::openapi_v3())),
        _ => None,
    };
    let answer = match constant {
        Some(document) => document.map(|document| constant_answer(&request, document)),
        None => data(&request, &front).await,
    };
    answer.unwrap_or_else(|failure| refuse(&failure))
}

fn constant_answer(request: &HttpRequest, document: Document) -> HttpResponse {
    let hash =
        Sha256::digest(&document.body).iter().take(16).fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    let tag = format!("\"{hash:x}\"");
    let known = request.headers().get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let unchanged = known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag));
    if unchanged {
        return HttpResponse::NotModified().insert_header((ETAG, tag)).finish();
    }
    HttpResponse::Ok()
        .insert_header((ETAG, tag))
        .insert_header((CONTENT_TYPE, document.content_type))
        .body(document.body)
}

/// Answers a request about jobs.
async fn data(request: &HttpRequest, front: &Arc<Front>) -> Result<HttpResponse, StatusError> {
    let user = front.headers().and_then(|headers| headers.user(request.headers()));
    let user = user.ok_or_else(|| StatusError::forbidden("the API server does not say who asks"))?;
    let target = RequestPath::parse(request.uri().path()).ok_or_else(StatusError::no_such_path)?;
    let query = request.uri().query().unwrap_or_default();
    let wish = access_request(request.method(), &target, query, &user)?;
    let permit = front.requests.try_acquire(Flow::of(&user.name)).ok_or_else(|| {
        StatusError::too_many(format!("too many requests for {RESOURCE} are answered at the moment: try again"))
    })?;
    let allowed = front.reviews.allows(&front.client, wish.clone()).await.map_err(|error| {
        tracing::warn!(%error, "access review failed");
        StatusError::unavailable("the API server cannot be asked whether this is allowed")
    })?;
    if !allowed {
        let place = if wish.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {:?}", wish.namespace)
        };
        let resource = match wish.subresource.as_str() {
            "" => wish.resource.to_owned(),
            subresource => format!("{}/{subresource}", wish.resource),
        };
        let message = format!(
            "{}.{GROUP} is forbidden: User {:?} cannot {} resource {resource:?} in API group {GROUP:?} {place}",
            wish.resource, user.name, wish.verb
        );
        return Err(StatusError::forbidden(message));
    }
    hand_on(request, front, &user, permit).await
}

/// Returns the access that RBAC has to allow, as the API server derives it.
fn access_request(
    method: &Method,
    target: &RequestPath,
    query: &str,
    user: &User,
) -> Result<AccessRequest, StatusError> {
    let action = target.action(method.as_str())?;
    let parameters = parameters(query)?;
    let value = |name: &str| parameters.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
    if action.is_some() && value("dryRun").is_some() {
        return Err(StatusError::bad_request("holding, releasing and removing a job cannot be tried with dryRun"));
    }
    let watch = value("watch").is_some_and(|watch| watch != "0" && !watch.eq_ignore_ascii_case("false"));
    let verb = match (action, &target.name, watch) {
        (Some(_), _, _) => "create",
        (None, Some(_), _) => "get",
        (None, None, true) => "watch",
        (None, None, false) => "list",
    };
    // A list of one name is allowed to users who may list that name.
    let named = || Selection::parse(None, value("fieldSelector")).ok().and_then(|selection| selection.only_name());
    let owned = |text: &Option<String>| text.clone().unwrap_or_default();
    Ok(AccessRequest {
        user: user.clone(),
        verb,
        resource: target.kind.resource(),
        namespace: owned(&target.namespace),
        name: target.name.clone().or_else(named).unwrap_or_default(),
        subresource: owned(&target.subresource),
    })
}

/// Asks the leader, and streams its answer.
async fn hand_on(
    request: &HttpRequest,
    front: &Arc<Front>,
    user: &User,
    permit: FairPermit,
) -> Result<HttpResponse, StatusError> {
    let nobody = || StatusError::unavailable("no htc-operator leads at the moment: try again");
    let lasts = request.uri().path().ends_with("/log");
    let leader = front.leader(lasts).ok_or_else(nobody)?;
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    // The body of a POST request has no meaning.
    let mut asked = http::Request::builder()
        .method(request.method().as_str())
        .uri(path)
        .header("X-Remote-User", user.name.as_bytes());
    if let Some(accept) = request.headers().get(ACCEPT) {
        asked = asked.header("Accept", accept.as_bytes());
    }
    let asked = asked.body(kube::client::Body::empty()).map_err(|error| StatusError::bad_request(error.to_string()))?;
    let answer = match tokio::time::timeout(ANSWER, leader.send(asked)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            tracing::info!(%error, "leader unreachable");
            return Err(nobody());
        }
        Err(_) => {
            tracing::warn!(limit_seconds = ANSWER.as_secs(), "leader did not answer in time");
            return Err(nobody());
        }
    };
    let status = StatusCode::from_u16(answer.status().as_u16()).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = HttpResponse::build(status);
    for name in SHOWN_HEADERS {
        if let Some(value) = answer.headers().get(name).and_then(|value| value.to_str().ok()) {
            response.insert_header((name, value));
        }
    }
    let parts = answer.into_body().into_data_stream().map(move |part| {
        let _until_it_ends = &permit;
        part
    });
    Ok(response.streaming(parts))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use htc_support::fair_limiter::FairLimiter;
    use kube::{Client, Config};
    use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

    use super::*;
    use crate::http::certificates::JobsApiNames;

    fn front() -> Front {
        let mut config = Config::new(http::Uri::from_static("http://127.0.0.1:1"));
        config.accept_invalid_certs = true;
        Front {
            client: Client::try_from(config).unwrap(),
            places: JobsApiNames { namespace: String::new(), operator: String::new() },
            leader_url: http::Uri::from_static("https://127.0.0.1:1"),
            certificate: crate::http::mtls::ServerCertificate::default(),
            trusted_clients: crate::http::mtls::TrustedClients::default(),
            headers: parking_lot::RwLock::default(),
            leader: parking_lot::RwLock::default(),
            seen: parking_lot::Mutex::default(),
            reviews: super::super::Reviews::default(),
            requests: FairLimiter::never_slow(1, 1),
        }
    }

    /// Returns a certificate of this name, and its key.
    fn certificate(issuer: &Issuer<'static, KeyPair>, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
    }

    /// Requests something that the front answers by itself. Returns the head of the answer.
    fn ask(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> String {
        stream.write_all(b"GET /apis HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n\r\n").unwrap();
        let (mut head, mut byte) = (String::new(), [0]);
        while !head.ends_with("\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0].into());
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        stream.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
        head
    }

    /// Returns a front whose clients are called `front-proxy-client`, and the configuration of such a client.
    fn served() -> (Arc<Front>, Port, String, Arc<ClientConfig>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let front = Arc::new(front());
        let (chain, key) = certificate(&issuer, "front");
        front.certificate.replace(&chain, &key).unwrap();
        accept(&front, &authority.pem(), "front-proxy-client");
        let port = listen("127.0.0.1:0".parse().unwrap(), &front).unwrap();

        let (chain, key) = certificate(&issuer, "front-proxy-client");
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let config = config.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
        (front, port, authority.pem(), Arc::new(config))
    }

    fn accept(front: &Front, authority: &str, name: &str) {
        front.trusted_clients.replace(authority, BTreeSet::from([name.to_owned()])).unwrap();
    }

    fn connect(port: &Port, config: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
        let tls = ClientConnection::new(Arc::clone(config), "localhost".try_into().unwrap()).unwrap();
        StreamOwned::new(tls, TcpStream::connect(port.address).unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn connection_is_served_while_its_certificate_is_trusted() {
        let (front, port, authority, config) = served();
        let mut stream = connect(&port, &config);
        tokio::task::block_in_place(|| {
            assert!(ask(&mut stream).starts_with("HTTP/1.1 200"));
            accept(&front, &authority, "front-proxy-client");
            assert!(ask(&mut stream).starts_with("HTTP/1.1 200"), "nothing has changed for it");
            accept(&front, &authority, "another-client");
            let refused = ask(&mut stream);
            assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("connection: close"), "{refused}");
        });
    }

    /// Opens a connection from this address that sends nothing.
    async fn silent(from: [u8; 4], to: SocketAddr) -> tokio::net::TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        socket.connect(to).await.unwrap()
    }

    #[rstest::rstest]
    #[case::one_address(1)]
    #[case::fifty_addresses(50)]
    #[tokio::test(flavor = "multi_thread")]
    async fn silent_connections_do_not_block_the_api_server(#[case] addresses: u8) {
        let (_front, port, _, config) = served();
        let mut kept = Vec::new();
        // More than twice as many connections as keep a port of actix-web's own busy, and again for each of the API
        // server's connections.
        for round in 0..3 {
            for number in 0..1200_u32 {
                let last = u8::try_from(number % u32::from(addresses)).unwrap() + 2;
                kept.push(silent([127, 0, 7, last], port.address).await);
            }
            let mut stream = connect(&port, &config);
            stream.sock.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            tokio::task::block_in_place(|| assert!(ask(&mut stream).starts_with("HTTP/1.1 200"), "round {round}"));
        }
    }
}
