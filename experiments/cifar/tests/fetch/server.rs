//! A stand-in for the Hugging Face hub on this machine. Like the real one, it redirects a file to
//! where the bytes are.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use sha2::{Digest, Sha256};

const REPOSITORY: &str = "/datasets/uoft-cs/cifar10/resolve/main/plain_text/";
pub(crate) const TRAIN: &str = "train-00000-of-00001.parquet";
pub(crate) const TEST: &str = "test-00000-of-00001.parquet";
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the hub does when it is asked for a file.
pub(crate) enum Answer {
    /// Sends it.
    File(Vec<u8>),
    /// Sends a byte that is not the file's.
    Altered(Vec<u8>),
    /// Hangs up in the middle of it.
    Half(Vec<u8>),
    /// Claims a terabyte.
    Huge(Vec<u8>),
    /// Says something else.
    Status(&'static str),
    /// Says nothing.
    Silence,
}

/// Starts a hub that goes on until the test ends, and returns its address.
pub(crate) fn start(train: Answer, test: Answer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let files = Arc::new([(TRAIN, train), (TEST, test)]);
    let host = address.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (files, host) = (files.clone(), host.clone());
            // A client that hangs up is no concern of the hub's.
            std::thread::spawn(move || serve(stream?, &files[..], &host));
        }
    });
    address
}

/// An address at which nobody answers.
pub(crate) fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn serve(mut stream: TcpStream, files: &[(&str, Answer)], host: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap_or(Ok(String::new()))?;
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut range = None;
    for line in lines.by_ref() {
        let line = line?.to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(text) = line.strip_prefix("range: bytes=") {
            range = text.split_once('-').map(|(from, to)| {
                let number = |text: &str| text.trim().parse::<usize>().ok();
                (number(from).unwrap(), number(to))
            });
        }
    }
    let asked = files.iter().find(|(name, _)| path.ends_with(name));
    let Some((name, answer)) = asked else {
        return respond(&mut stream, "404 Not Found", "", b"");
    };
    let file = match answer {
        Answer::File(file) | Answer::Altered(file) | Answer::Half(file) | Answer::Huge(file) => {
            file
        }
        Answer::Status(status) => return respond(&mut stream, status, "", b""),
        Answer::Silence => {
            // Ends when the client hangs up.
            return stream.read(&mut [0]).map(drop);
        }
    };
    if path == format!("{REPOSITORY}{name}") {
        let etag: String = Sha256::digest(file).iter().map(|byte| format!("{byte:02x}")).collect();
        let headers = format!(
            "Location: {host}/stored/{name}\r\nX-Repo-Commit: {COMMIT}\r\nX-Linked-Etag: \"{etag}\"\r\nX-Linked-Size: {}\r\n",
            file.len()
        );
        return respond(&mut stream, "302 Found", &headers, b"");
    }
    let (from, to) = range.unwrap_or((0, None));
    let to = to.map_or(file.len(), |to| to + 1);
    let mut body = file[from..to].to_vec();
    if body.len() > 1 && matches!(answer, Answer::Altered(_)) {
        body[1] ^= 1;
    }
    let size = if matches!(answer, Answer::Huge(_)) { 1_000_000_000_000 } else { file.len() };
    let headers =
        format!("ETag: \"of-the-store\"\r\nContent-Range: bytes {from}-{}/{size}\r\n", to - 1,);
    if body.len() > 1 && matches!(answer, Answer::Half(_)) {
        let length = body.len();
        let half = &body[..length / 2];
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\n{headers}Content-Length: {length}\r\n\r\n"
        )?;
        return stream.write_all(half);
    }
    respond(&mut stream, "206 Partial Content", &headers, &body)
}

fn respond(
    stream: &mut TcpStream,
    status: &str,
    headers: &str,
    body: &[u8],
) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)
}
