#!/bin/sh
# Prints a token for a Tidegate client. Needs nothing but a shell and openssl.
#
# usage: sh mint.sh KEY_FILE USER [DEVICE]
set -eu

encode() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }

head=$(printf '{"alg":"HS256","typ":"JWT"}' | encode)
now=$(date +%s)
device=${3:+,\"dev\":\"$3\"}
claims=$(printf '{"sub":"%s","iat":%s,"exp":%s%s}' "$2" "$now" "$((now + 3600))" "$device" | encode)
# The key is the 32 bytes that the 64 hex digits in the file stand for, not the digits.
key=$(tr -d ' \n\r' < "$1")
signature=$(printf '%s.%s' "$head" "$claims" | openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | encode)
echo "$head.$claims.$signature"
