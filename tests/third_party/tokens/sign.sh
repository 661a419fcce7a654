#!/bin/sh
# Prints a token that is signed with a private key: RSA (RS256), P-256 (ES256) or Ed25519 (EdDSA). Needs nothing but a shell and openssl 3.
#
# usage: sh sign.sh PRIVATE_KEY_PEM KID USER [DEVICE]
set -eu

encode() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }

# A JWT has both numbers of an ES256 signature side by side, 32 bytes each, and not in ASN.1.
join() {
    openssl asn1parse -inform DER | sed -n 's/.*INTEGER *://p' | while read -r number; do
        for byte in $(printf '%64s' "$number" | tr ' ' 0 | fold -w 2); do
            printf "\\$(printf %03o "0x$byte")"
        done
    done
}

case $(openssl pkey -in "$1" -noout -text_pub) in
    *Modulus:*) alg=RS256 ;;
    *prime256v1*) alg=ES256 ;;
    *ED25519*) alg=EdDSA ;;
    *) echo "$1: neither RSA nor P-256 nor Ed25519" >&2; exit 1 ;;
esac
head=$(printf '{"alg":"%s","typ":"JWT","kid":"%s"}' "$alg" "$2" | encode)
now=$(date +%s)
device=${4:+,\"dev\":\"$4\"}
claims=$(printf '{"sub":"%s","iat":%s,"exp":%s%s}' "$3" "$now" "$((now + 3600))" "$device" | encode)
signed=$(mktemp)
trap 'rm -f "$signed"' EXIT
printf '%s.%s' "$head" "$claims" > "$signed"
case $alg in
    RS256) signature=$(openssl dgst -sha256 -sign "$1" -binary "$signed" | encode) ;;
    ES256) signature=$(openssl dgst -sha256 -sign "$1" -binary "$signed" | join | encode) ;;
    EdDSA) signature=$(openssl pkeyutl -sign -rawin -inkey "$1" -in "$signed" | encode) ;;
esac
echo "$head.$claims.$signature"
