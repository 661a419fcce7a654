import{Aa as d,N as a,Q as o,S as t,U as n,V as p,b as e,o as r,t as i}from"./chunk-OT7LRHFZ.js";t();r();o();n();var l=document.getElementById("app");l&&e(p(d,{}),l);i().then(a);
